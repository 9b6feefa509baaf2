"""Segments come back in the order of the rows, each row once, and not all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer.io import merge
from infer.io.errors import StateError
from infer.io.journal import SegmentRecord
from infer.io.merge import merge_segments

if TYPE_CHECKING:
    import random

SCHEMA = pa.schema([("response", pa.string()), ("_row", pa.int64())])


def segments_of(groups: list[list[int]]) -> tuple[list[SegmentRecord], dict[str, pa.Table]]:
    records, tables = [], {}
    for number, rows in enumerate(groups):
        name = f"seg-{number:06}.parquet"
        records.append(SegmentRecord(name, len(rows), min(rows), max(rows), 0, "", ""))
        values = [{"response": None if row % 5 == 3 else f"r{row}", "_row": row} for row in sorted(rows)]
        tables[name] = pa.Table.from_pylist(values, SCHEMA)
    return records, tables


def merged(groups: list[list[int]], num_rows: int) -> list[dict[str, object]]:
    records, tables = segments_of(groups)
    batches = list(merge_segments(records, lambda segment: tables[segment.name], num_rows))
    assert all(batch.num_rows for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


@given(st.integers(0, 60), st.integers(1, 9), st.randoms(use_true_random=False))
def test_any_segments_come_back_in_order(num_rows: int, num_groups: int, draw: random.Random) -> None:
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    for row in range(num_rows):
        groups[draw.randrange(num_groups)].append(row)
    found = merged([group for group in groups if group], num_rows)
    assert found == [{"response": None if row % 5 == 3 else f"r{row}", "_row": row} for row in range(num_rows)]


def test_many_rows_come_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_MAX_BATCH_ROWS", 4)
    records, tables = segments_of([list(range(10))])
    batches = merge_segments(records, lambda segment: tables[segment.name], 10)
    assert [batch.num_rows for batch in batches] == [4, 4, 2]


def test_segments_are_read_when_their_rows_come_up() -> None:
    records, tables = segments_of([[0, 3], [1, 2], [4, 5], [6, 7]])
    read: list[str] = []

    def read_segment(segment: SegmentRecord) -> pa.Table:
        read.append(segment.name)
        return tables[segment.name]

    batches = merge_segments(records[::-1], read_segment, 8)
    assert next(batches)["_row"].to_pylist() == [0]
    assert read == ["seg-000000.parquet"]
    assert next(batches)["_row"].to_pylist() == [1, 2, 3]
    assert read == ["seg-000000.parquet", "seg-000001.parquet"]
    assert [batch["_row"].to_pylist() for batch in batches] == [[4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("groups", "num_rows", "message"),
    [
        ([[0, 1, 3]], 4, "a saved row is missing, near row 3"),
        ([[0], [2]], 3, "a saved row is missing, near row 2"),
        ([[1, 2]], 3, "a saved row is missing, near row 1"),
        ([[0, 1], [1, 2]], 3, "a saved row is there twice, near row 1"),
        ([[0, 1, 1, 2]], 3, "a saved row is there twice, near row 1"),
        ([[0, 1]], 3, "2 rows are saved in order, 3 were asked for"),
        ([], 1, "0 rows are saved in order, 1 were asked for"),
        ([[0, 1, 2, 3]], 3, "3 rows are saved in order, 3 were asked for"),
    ],
)
def test_row_that_is_missing_or_there_twice_is_a_bug(groups: list[list[int]], num_rows: int, message: str) -> None:
    with pytest.raises(StateError, match=f"^{message}"):
        merged(groups, num_rows)
