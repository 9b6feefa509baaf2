"""The segments of a run in the order of its rows.

Rows end in any order, so segments overlap, but only with their neighbours: what is held at a time is as much as rows
were under way at a time.

    seg 1   0 1 3 4 7          given out: 0 1, then 2 3 4 5, ...
    seg 2       2 5 6 9
    seg 3           8 10 11
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from infer.io.errors import StateError
from infer.io.segment import ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from infer.io.journal import SegmentRecord

_MAX_BATCH_ROWS = 1024


def merge_segments(
    segments: Sequence[SegmentRecord], read: Callable[[SegmentRecord], pa.Table], num_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows 0 to `num_rows` - 1, some at a time.

    Raises:
        StateError: a row is missing, or there twice.
    """
    ordered = sorted(segments, key=lambda segment: segment.first_row)
    next_starts = [segment.first_row for segment in ordered[1:]] + [num_rows]
    held: pa.Table | None = None
    next_row = 0
    for segment, next_start in zip(ordered, next_starts, strict=bool(ordered)):
        table = read(segment)
        held = table if held is None else pa.concat_tables([held, table])
        is_ready = pc.less(held[ROW], next_start)
        ready, held = held.filter(is_ready), held.filter(pc.invert(is_ready))
        order = pc.sort_indices(ready[ROW])
        for start in range(0, len(order), _MAX_BATCH_ROWS):
            batch = _as_batch(ready.take(order.slice(start, _MAX_BATCH_ROWS)))
            _check_rows(batch.column(ROW), next_row)
            next_row += batch.num_rows
            yield batch
    if next_row != num_rows or (held is not None and held.num_rows):
        raise StateError(f"{next_row} rows are saved in order, {num_rows} were asked for: this is a bug in infer")


def _as_batch(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


def _check_rows(rows: pa.Array, first: int) -> None:
    expected = pa.array(range(first, first + len(rows)), pa.int64())
    if not rows.equals(expected):
        pairs = zip(rows.to_pylist(), expected.to_pylist(), strict=True)
        found, missed = next((row, wanted) for row, wanted in pairs if row != wanted)
        what = "missing" if found > missed else "there twice"
        raise StateError(f"a saved row is {what}, near row {found}: this is a bug in infer")
