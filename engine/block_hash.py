"""What a full block holds, as a key that can be looked up: its tokens, and through its parent all that came before."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class BlockHash:
    """Key of a full block. `digest` finds candidates; `is_same_as` decides, by the tokens themselves.

    A chain: the key of block `i` of a sequence names the key of block `i - 1` as its parent, so equal keys mean equal
    prefixes, and a key can be shared by every sequence that begins alike.
    """

    digest: bytes
    parent: BlockHash | None
    token_ids: tuple[int, ...]

    def is_same_as(self, other: BlockHash) -> bool:
        """Whether both stand for the same tokens from the first block on; quick where the parents are shared."""
        a: BlockHash | None = self
        b: BlockHash | None = other
        while a is not b:
            if a is None or b is None or a.token_ids != b.token_ids:
                return False
            a, b = a.parent, b.parent
        return True


def hash_block(parent: BlockHash | None, token_ids: Sequence[int]) -> BlockHash:
    """Key of the block that holds `token_ids` behind `parent`: sha256 over the parent's digest and the tokens."""
    hasher = hashlib.sha256(parent.digest if parent is not None else b"")
    hasher.update(array("q", token_ids).tobytes())
    return BlockHash(hasher.digest(), parent, tuple(token_ids))


def hash_full_blocks(known: list[BlockHash], token_ids: Sequence[int], block_size: int) -> None:
    """Extend `known`, the keys of a sequence's first blocks, by the blocks that `token_ids` has filled since."""
    for start in range(len(known) * block_size, len(token_ids) - block_size + 1, block_size):
        known.append(hash_block(known[-1] if known else None, token_ids[start : start + block_size]))
