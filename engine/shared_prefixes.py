"""Which sequences of a step share their first blocks: found in the block tables, by sorting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_SHARED_TOKENS = 64
"""Shorter ones are not worth an entry of their own in a kernel's list of work."""

MIN_SAVED_TOKENS = 256
"""Of keys and values that need not be read again: shared tokens, times the sequences but one."""

_FIELDS = 4


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Sequences in an order in which those stand together that share, and what they share."""

    order: NDArray[np.intp]
    """`[num_seqs]`: which sequence stands at each place."""
    groups: NDArray[np.int32]
    """As `infer.kernels.attention_metadata.AttentionMetadata.shared_prefixes`, in the new order."""


def find_shared_prefixes(
    block_table: NDArray[np.int32], num_full_blocks: NDArray[np.int64], num_decodes: int, block_size: int
) -> SharedPrefixes:
    """Walks down the tree of the tables, one branching a round. The first `num_decodes` sequences stay in front of the
    others.

    block_table: `[num_seqs, max_blocks]`
    num_full_blocks: `[num_seqs]`, of each how many blocks lie before its first query
    """
    place = np.arange(len(block_table))
    order, groups = place, np.empty((0, _FIELDS), np.int32)
    min_blocks = -(-MIN_SHARED_TOKENS // block_size)
    # A table that begins with block 0 has given its first ones back.
    ends = np.where(block_table[:, 0] == 0, 0, num_full_blocks)
    # Of the group that the sequence at each place is in so far: its number, and the block where it ends.
    number, start = (place >= num_decodes).astype(np.intp), np.zeros(len(place), np.intp)
    while True:
        # Who shares the last of the next `min_blocks` shares all before it: a block is found by all that precedes it.
        column = start + min_blocks - 1
        has_column = column < ends[order]
        if not has_column.any():
            return SharedPrefixes(order, groups)
        key = np.where(has_column, block_table[order, np.where(has_column, column, 0)], -1 - order)
        turn = np.lexsort((key, number))
        turned, key, number, start = order[turn], key[turn], number[turn], start[turn]
        is_shared = (key[1:] == key[:-1]) & (number[1:] == number[:-1])
        found = _groups_of(is_shared, _num_shared(block_table, ends, turned, is_shared), start, block_size)
        if len(found) == 0:
            return SharedPrefixes(order, groups)
        order, groups = turned, np.concatenate([groups, found])
        # Who is in no group is alone in one, and at its end.
        number, start = place.copy(), ends[order]
        for first, end, _, end_block in found:
            number[first:end], start[first:end] = first, end_block


def _num_shared(
    block_table: NDArray[np.int32], ends: NDArray[np.int64], order: NDArray[np.intp], is_shared: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """`[num_seqs - 1]`: how many blocks the sequence at each place has in common with the next one, where it has."""
    pairs = np.flatnonzero(is_shared)
    these, next_ones = order[pairs], order[pairs + 1]
    most = np.minimum(ends[these], ends[next_ones])
    differs = block_table[these] != block_table[next_ones]
    num_shared = np.zeros(len(is_shared), np.intp)
    num_shared[pairs] = np.where(differs.any(axis=1), np.minimum(differs.argmax(axis=1), most), most)
    return num_shared


def _groups_of(
    is_shared: NDArray[np.bool_], num_shared: NDArray[np.intp], start: NDArray[np.intp], block_size: int
) -> NDArray[np.int32]:
    """Runs of neighbours that share enough behind `start`, `[num_seqs]`."""
    joined = np.concatenate([[False], is_shared & (num_shared > start[:-1]), [False]])
    firsts = np.flatnonzero(~joined[:-1] & joined[1:])
    lasts = np.flatnonzero(joined[:-1] & ~joined[1:])
    if len(firsts) == 0:
        return np.empty((0, _FIELDS), np.int32)
    # Of every second of the stretches between these borders: the inside of a run.
    borders = np.stack([firsts, lasts], axis=1).ravel()
    ends = np.minimum.reduceat(np.append(num_shared, 0), borders)[::2]
    found = np.stack([firsts, lasts + 1, start[firsts], ends], axis=1).astype(np.int32)
    return found[(lasts - firsts) * (ends - start[firsts]) * block_size >= MIN_SAVED_TOKENS]
