"""A row of the input, as the command line sees it.

Rows are read in blocks and point into theirs, so that a row costs four slots and writing its kept columns is a slice
of what was read, without a detour through Python values:

    block   [ row 512 | row 513 | ... | row 1023 ]
                        ^
    Row(index=513, block, offset=1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row cannot be run. `message` says where it stands: file and line, or file and row."""

    code: str
    message: str


class RowBlock(Protocol):
    """Consecutive rows as they were read. It lives as long as one of its rows."""

    def value(self, offset: int, name: str) -> object:
        """The Python value of one row's column `name`; None where it is null or missing."""

    def columns(self, offsets: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
        """The rows at `offsets` as Arrow columns of exactly `schema`."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One row: its position in the whole input, and its values or what is wrong with it."""

    index: int
    block: RowBlock | None
    """None where the row could not be read; then all its columns are null and `error` says why."""
    offset: int = 0
    error: RowError | None = None

    def get(self, name: str) -> object:
        """The Python value of column `name`; None where it is null, missing or unreadable."""
        return None if self.block is None else self.block.value(self.offset, name)

    def to_dict(self, names: Iterable[str]) -> dict[str, object]:
        """The Python values of several columns, in the order of `names`."""
        return {name: self.get(name) for name in names}
