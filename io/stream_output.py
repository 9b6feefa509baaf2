"""Rows to a stream, as JSONL and in their order; of a stream nothing can be taken back, and nothing is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.io.jsonl_writer import dump_lines
from infer.io.segment import result_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from infer.io.row import Row
    from infer.io.schema import OutputSchema


class StreamOutput:
    """Holds what is done until all before it is."""

    def __init__(self, stream: BinaryIO, schema: OutputSchema) -> None:
        self._stream = stream
        self._schema = schema
        self._held: dict[int, tuple[Row, Mapping[str, object]]] = {}
        self._next_row = 0

    def add(self, rows: Sequence[tuple[Row, Mapping[str, object]]]) -> None:
        self._held.update((row.index, (row, record)) for row, record in rows)
        ready = []
        while self._next_row in self._held:
            ready.append(self._held.pop(self._next_row))
            self._next_row += 1
        if ready:
            results = result_table([record for _, record in ready], self._schema.results)
            for batch in results.combine_chunks().to_batches():
                self._stream.write(dump_lines([row for row, _ in ready], batch, self._schema))
            self._stream.flush()
