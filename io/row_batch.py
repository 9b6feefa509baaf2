"""Rows and their results as one Arrow batch: kept columns sliced from what was read, results as they were saved."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.io.row import Row
    from infer.io.schema import OutputSchema


def row_batches(rows: Sequence[Row], results: pa.RecordBatch, schema: OutputSchema) -> list[pa.RecordBatch]:
    """`rows` in order with the columns of `results`, a batch for each run of rows that were read together."""
    batches = []
    start = 0
    for block, run in groupby(rows, key=lambda row: row.block):
        offsets = [row.offset for row in run]
        if block is None:
            kept = [pa.nulls(len(offsets), field.type) for field in schema.kept]
        else:
            kept = block.columns(offsets, schema.kept).columns
        columns = kept + results.slice(start, len(offsets)).columns
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema.columns))
        start += len(offsets)
    return batches
