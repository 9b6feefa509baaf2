"""Outputs without a run: rows, with results made up for them, published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from infer.io.output import open_output
from infer.io.publish import join_rows
from infer.io.reader import open_source
from infer.io.row import Row
from infer.io.schema import OutputSchema, output_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RESULTS = pa.schema([("response", pa.string()), ("tokens", pa.int32()), ("_row", pa.int64())])
NO_INPUT = OutputSchema(pa.schema([]), RESULTS)


def result_batches(num_rows: int, at_once: int = 50) -> Iterator[pa.RecordBatch]:
    """Results of the first rows."""
    for start in range(0, num_rows, at_once):
        rows = range(start, min(start + at_once, num_rows))
        yield pa.RecordBatch.from_pylist(
            [{"response": f"response {row}", "tokens": None, "_row": row} for row in rows], RESULTS
        )


def publish_rows(
    path: Path, rows: Iterator[Row], num_rows: int, schema: OutputSchema, *, overwrite: bool = False, at_once: int = 50
) -> None:
    """Write `rows` aside and give them their name."""
    output = open_output(path)
    output.check(overwrite=overwrite)
    aside = output.aside("0")
    try:
        output.write(aside, join_rows(rows, result_batches(num_rows, at_once)), schema, {})
        output.publish(aside, overwrite=overwrite)
    finally:
        output.discard("0")


def publish_no_input(path: Path, num_rows: int, *, overwrite: bool = False, at_once: int = 50) -> None:
    """An output of rows that have no columns of their own."""
    rows = (Row(index, None) for index in range(num_rows))
    publish_rows(path, rows, num_rows, NO_INPUT, overwrite=overwrite, at_once=at_once)


def convert(
    inputs: list[str], path: Path, *, keep: list[str] | None = None, prefix: str = "", at_once: int = 7
) -> None:
    """A run without a model."""
    source = open_source(inputs)
    schema = output_schema(source.schema, keep, RESULTS, prefix)
    publish_rows(path, source.rows(schema.kept.names), source.num_rows, schema, at_once=at_once)
