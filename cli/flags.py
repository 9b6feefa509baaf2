"""The names of flags, for messages about them."""

from __future__ import annotations

import re
from dataclasses import fields

from infer.engine.config import EngineConfig
from infer.engine.sampling_params import SamplingParams

_OTHER_NAMES = {"memory_utilization": "gpu_memory_utilization"}
_NAMES = [each.name for kind in (EngineConfig, SamplingParams) for each in fields(kind)]
# A name of one word may be a word of the message, unless the message begins with it.
_SETTING = re.compile(rf"^(?:{'|'.join(_NAMES)})\b|\b(?:{'|'.join(name for name in _NAMES if '_' in name)})\b")


def flag(name: str) -> str:
    """`--max-tokens` for the parameter `max_tokens`."""
    return f"--{_OTHER_NAMES.get(name, name).replace('_', '-')}"


def with_flags(message: str) -> str:
    """A message of the engine, its settings under the names of their flags."""
    return _SETTING.sub(lambda match: flag(match[0]), message)
