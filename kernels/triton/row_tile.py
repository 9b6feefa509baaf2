"""How many rows of an operator that treats rows one by one go into a Triton program, and on how many warps it runs."""

from __future__ import annotations

from dataclasses import dataclass

import triton

_ELEMENTS_PER_PROGRAM = 1024
"""Of short rows as many as make so many elements: a program of one head would hardly be worth its launch."""
_ELEMENTS_PER_THREAD = 8
"""Of 16 bits: one load of 16 bytes."""
_MOST_WARPS = 16


@dataclass(frozen=True, slots=True)
class RowTile:
    size_padded: int
    """A power of two, the columns under a mask."""
    num_rows: int
    num_warps: int


def row_tile(size: int) -> RowTile:
    """For rows of `size` elements that are held in registers as a whole."""
    size_padded = int(triton.next_power_of_2(size))
    num_rows = max(1, _ELEMENTS_PER_PROGRAM // size_padded)
    num_warps = num_rows * size_padded // (32 * _ELEMENTS_PER_THREAD)
    return RowTile(size_padded, num_rows, max(1, min(_MOST_WARPS, num_warps)))
