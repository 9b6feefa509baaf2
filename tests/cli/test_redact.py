"""Secrets are not shown; what only looks like one is."""

from __future__ import annotations

import pytest

from infer.cli.redact import redact

SECRET = "q9Zk3vXw7LmP2tRs8YbN4cDf"
TOKENS = [
    f"hf_{SECRET}",
    f"https://user:{SECRET}@host/x",
    f"https://{SECRET}@host/x",
    f"s3://bucket/key?X-Amz-Algorithm=A&X-Amz-Credential={SECRET}&X-Amz-Signature={SECRET}&x=1",
    f"https://account.blob/x?sv=2024&sig={SECRET}%3D&se=1",
    f"https://storage/x?X-Goog-Signature={SECRET}",
    f"https://host/x?AWSAccessKeyId={SECRET}&Signature={SECRET}",
    f"https://host/x?access_token={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"{{'authorization': 'Basic {SECRET}'}}",
    f'"Authorization": "{SECRET}"',
    f"sent Bearer {SECRET} to the host",
    f"aws_secret_access_key = {SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
    f"password={SECRET}",
    f"client_secret: '{SECRET}'",
    f"api_key={SECRET}",
    f"AccountKey={SECRET}",
    "AKIAABCDEFGHIJKLMNOP",
    f"ghp_{SECRET}",
    f"sk-{SECRET}",
    f"AIza{SECRET}{SECRET}",
    f"xoxb-{SECRET}",
    f"eyJhbGciOi.{SECRET}.{SECRET}",
]


@pytest.mark.parametrize("text", TOKENS)
def test_secret_is_hidden(text):
    shown = redact(f"got {text} there")
    assert SECRET not in shown
    assert "AKIAABC" not in shown
    assert "***" in shown
    assert shown.startswith("got ")
    assert shown.endswith(" there")


@pytest.mark.parametrize(
    "text",
    [
        "error: no such column: token",
        "the text has a control token of the model: <|im_end|>",
        "--stop-token-ids takes token ids separated by commas: '1,x'",
        "https://huggingface.co/org/model",
        "reads s3://bucket/data.parquet?versionId=3",
        "hf_hub_download",
        "/home/user/data@2024/file.jsonl:3: invalid",
        "bos_token: <s>",
        "token: <|begin_of_text|>",
        "password: none",
        "tokens/s 1,234",
        "basic words",
        "sampling: greedy, max_tokens 4, seed 7",
    ],
)
def test_other_text_stays_as_it_is(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    "part", ["a.", "a://", "password=", "Authorization: a ", "hf_", "eyJ", "?sig=", "bearer ", "x@"]
)
def test_hiding_takes_time_in_proportion_to_the_text(part):
    """A pattern that tries every beginning against every end would not come back from this."""
    assert redact(part * (1 << 16))
