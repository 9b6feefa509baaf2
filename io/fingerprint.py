"""What a run depends on, field by field: whether what is saved of one may be continued by another.

hard   a change makes other answers, or other rows: refused
soft   a change should make the same answers: recorded, and said
free   all else is not recorded at all: sizes of batches and caches, threads, display
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_MAX_SHOWN = 40
_CONTEXT = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that was one thing and is another."""

    name: str
    saved: object
    now: object

    def __str__(self) -> str:
        saved, now = _text(self.saved), _text(self.now)
        pairs = enumerate(zip(saved, now, strict=False))
        # Where none of them differs, one goes on where the other ends.
        first = next((at for at, (one, other) in pairs if one != other), min(len(saved), len(now)))
        start = max(0, first - _CONTEXT)
        return f"{self.name}: {_cut(saved, start)} -> {_cut(now, start)}"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Values are what JSON can hold."""

    hard: Mapping[str, object]
    soft: Mapping[str, object]

    @property
    def sha256(self) -> str:
        """Of the hard fields."""
        return hashlib.sha256(json.dumps(self.hard, sort_keys=True).encode()).hexdigest()

    def hard_changes(self, now: Fingerprint, *, unknown: Collection[str] = ()) -> list[Difference]:
        """From this one to `now`, of which the fields `unknown` are not known yet."""
        return _changes(self.hard, now.hard, unknown)

    def soft_changes(self, now: Fingerprint) -> list[Difference]:
        return _changes(self.soft, now.soft, ())


def _changes(saved: Mapping[str, object], now: Mapping[str, object], unknown: Collection[str]) -> list[Difference]:
    names = [name for name in dict.fromkeys([*saved, *now]) if name not in unknown]
    return [Difference(name, saved.get(name), now.get(name)) for name in names if saved.get(name) != now.get(name)]


def _text(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, start: int) -> str:
    cut = text[start : start + _MAX_SHOWN]
    return f"{'...' if start else ''}{cut}{'...' if start + len(cut) < len(text) else ''}" or "(empty)"
