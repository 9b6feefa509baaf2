"""Secrets in text that is shown: what a library says of a URL that failed holds its signature, or a token of the hub.

Recognised by what stands before them, or by their own form. What is replaced becomes `***`.
"""

from __future__ import annotations

import re

_HIDDEN = "***"
_SETTINGS = (
    r"X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|aws_secret_access_key|aws_session_token"
    r"|secret_?key|secret|passwd|password|pwd|api_?key|access_?key|access_?token|auth_?token|refresh_?token"
    r"|id_?token|client_?secret|account_?key"
)
_PARAMETERS = rf"{_SETTINGS}|signature|sig|token|Key-Pair-Id"
_PATTERNS = (
    # user:password@ of a URL, and a token that stands there alone
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s/?#@]+@", re.IGNORECASE), rf"\1{_HIDDEN}@"),
    # a parameter of a URL
    (re.compile(rf"([?&;](?:{_PARAMETERS})=)[^\s&#;\"'<>]+", re.IGNORECASE), rf"\1{_HIDDEN}"),
    # a header; its value may have two words
    (
        re.compile(r"(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*)[\"']?(?:[a-z]+ +)?[^\s\"',;]+", re.IGNORECASE),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(r"(\b(?:bearer|basic) +)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1{_HIDDEN}"),
    # a setting: at least eight characters, so that `password: none` stays as it is
    (
        re.compile(rf"((?<![\w-])(?:{_SETTINGS})[\"']?(?:\s*=\s*|\s*:\s*)[\"']?)[^\s\"',;&]{{8,}}", re.IGNORECASE),
        rf"\1{_HIDDEN}",
    ),
    # tokens that can be told by their own form: of the hub, of AWS, GitHub, OpenAI, Google, Slack, and signed JSON
    (re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}"), _HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"), _HIDDEN),
    (re.compile(r"\b(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,}"), _HIDDEN),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{20,}"), _HIDDEN),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"), _HIDDEN),
    (re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"), _HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), _HIDDEN),
)


def redact(text: str) -> str:
    """`text` without the secrets that can be told from other text."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
