"""A set of rows, a bit a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class RowSet:
    """Of the rows 0 to `num_rows` - 1."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._bits = bytearray((num_rows + 7) // 8)
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, row: object) -> bool:
        assert isinstance(row, int), row
        return 0 <= row < self.num_rows and bool(self._bits[row >> 3] & 1 << (row & 7))

    def __iter__(self) -> Iterator[int]:
        return (row for row in range(self.num_rows) if row in self)

    def add(self, row: int) -> bool:
        """Whether it was new.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < self.num_rows:
            raise IndexError(row)
        # By hand: a resumed run adds all rows that are saved.
        byte, bit = row >> 3, 1 << (row & 7)
        if self._bits[byte] & bit:
            return False
        self._bits[byte] |= bit
        self._len += 1
        return True

    def missing(self, rows: Iterable[int]) -> Iterator[int]:
        """Those of `rows` that are not in it."""
        return (row for row in rows if row not in self)
