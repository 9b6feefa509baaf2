"""Finding: one thing that `infer doctor` has looked at."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(enum.StrEnum):
    OK = "ok"
    NOTE = "note"
    """Runs work; something could be better."""
    BROKEN = "broken"
    """No run works."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, in a line; what to do about it, where there is something."""

    subject: str
    state: State
    text: str
    hint: str = ""
    figures: Mapping[str, object] = field(default_factory=dict)
    """The same for programs."""
