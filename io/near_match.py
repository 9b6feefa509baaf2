"""The hint for a name that does not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def near_match_hint(name: str, known: Iterable[str]) -> str:
    """`did you mean 'text'?`, or nothing where no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else ""
