"""Rows and their results as one Arrow batch: kept columns sliced from what was read, results column by column."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.io.row import Row
    from infer.io.schema import OutputSchema


def row_batches(records: Sequence[tuple[Row, dict[str, object]]], schema: OutputSchema) -> list[pa.RecordBatch]:
    """`records` in order, a batch for each run of rows that were read together."""
    results = [pa.array([result[field.name] for _, result in records], field.type) for field in schema.results]
    batches = []
    start = 0
    for block, run in groupby((row for row, _ in records), key=lambda row: row.block):
        offsets = [row.offset for row in run]
        if block is None:
            kept = [pa.nulls(len(offsets), field.type) for field in schema.kept]
        else:
            kept = block.columns(offsets, schema.kept).columns
        columns = kept + [column.slice(start, len(offsets)) for column in results]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema.columns))
        start += len(offsets)
    return batches
