"""A row is its place in the input, and what it gives of its block."""

from __future__ import annotations

import pyarrow as pa

from infer.io.parquet import ArrowBlock
from infer.io.row import Row, RowError

BLOCK = ArrowBlock(pa.record_batch({"a": ["x", "y"], "b": [1, None]}))


def test_row_gives_the_values_of_its_place_in_the_block() -> None:
    row = Row(7, BLOCK, 1)
    assert (row.get("a"), row.to_dict(["b", "a"])) == ("y", {"b": None, "a": "y"})
    assert list(row.to_dict(["b", "a"])) == ["b", "a"]


def test_row_that_could_not_be_read_gives_none() -> None:
    row = Row(3, None, error=RowError("invalid_input", "a.jsonl:4: oops"))
    assert (row.get("x"), row.to_dict(["x"])) == (None, {"x": None})


def test_row_is_equal_to_itself_only() -> None:
    assert Row(0, BLOCK) != Row(0, BLOCK)
    assert len({Row(0, BLOCK), Row(0, BLOCK)}) == 2
