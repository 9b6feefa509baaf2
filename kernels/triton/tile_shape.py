"""How much of the attention one Triton program takes on, from the sizes that decide registers and shared memory.

For heads of up to 256 the kernels compile without spills, for Ampere and Ada within the 99 KiB of shared memory that
the smallest of them have, for Hopper within its own: `tests/kernels/triton_resources.txt`.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton

_MIN_DOT_SIZE = 16
"""Smallest side of a matrix that `tl.dot` takes."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """Rows are (query, head) pairs that read the same KV head."""

    num_rows: int
    num_keys: int
    num_warps: int
    num_stages: int


def padded(size: int) -> int:
    """The power of two that a dimension of `size` is loaded as, under a mask."""
    return max(_MIN_DOT_SIZE, int(triton.next_power_of_2(size)))


def decode_tile(group_size: int, head_dim: int, element_size: int) -> TileShape:
    """All query heads of one KV head, one query each."""
    return _tile_of(padded(group_size), head_dim, element_size)


def prefill_tile(max_query_len: int, group_size: int, head_dim: int, element_size: int) -> TileShape:
    """As many queries as the batch can fill, so that a key is read once for many of them."""
    # float32 is multiplied outside the tensor cores, from registers, and has no use for large tiles.
    most_rows = min(32 if element_size == 4 else 128, 128 * 256 // _row_bytes(head_dim, element_size))
    num_rows = max(padded(group_size), min(most_rows, padded(max_query_len * group_size)))
    return _tile_of(num_rows, head_dim, element_size)


def shared_tile(num_decodes: int, group_size: int, head_dim: int, element_size: int) -> TileShape:
    """Queries of several sequences over keys that they share. Half as many as of a prefill: the loop over a work list
    takes registers, too."""
    most_rows = min(32 if element_size == 4 else 64, 64 * 256 // _row_bytes(head_dim, element_size))
    num_rows = max(padded(group_size), min(most_rows, padded(num_decodes * group_size)))
    return _tile_of(num_rows, head_dim, element_size)


def _tile_of(num_rows: int, head_dim: int, element_size: int) -> TileShape:
    row_bytes = _row_bytes(head_dim, element_size)
    num_stages = 3 if row_bytes <= 256 else 2
    if element_size == 4:
        return TileShape(num_rows, 16, 4 if num_rows == 16 else 8, num_stages)
    num_keys = max(_MIN_DOT_SIZE, min(64, 64 * 256 // row_bytes))
    return TileShape(num_rows, num_keys, 4 if num_rows * row_bytes <= 64 * 128 else 8, num_stages)


def _row_bytes(head_dim: int, element_size: int) -> int:
    return padded(head_dim) * element_size
