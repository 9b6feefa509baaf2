"""What the caches have of a sequence that waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infer.engine.block import Block


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What a sequence need not compute.

    |-- blocks: on the device --|-- to be loaded --|      tokens behind num_tokens are computed
    """

    blocks: list[Block] = field(default_factory=list)
    """Not yet touched."""
    num_tokens: int = 0
    tiers: list[str] = field(default_factory=list)
    """Of each block to be loaded, where it comes from."""
