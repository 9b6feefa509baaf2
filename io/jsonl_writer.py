"""Writes rows to JSONL, a line at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.io.json_value import dump

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from infer.io.row import Row
    from infer.io.schema import OutputSchema
    from infer.io.storage import NewFile


class JsonlWriter:
    """Rows go to `file` as they come. There is no place for `metadata`."""

    def __init__(self, file: NewFile, schema: OutputSchema, metadata: Mapping[str, str] | None = None) -> None:
        self._file = file
        self._schema = schema
        self.sha256: str | None = None
        """The digest of the whole file, once it is closed. Lines have no place for it: it belongs into the state."""

    def write(self, rows: Sequence[Row], results: pa.RecordBatch) -> None:
        """Appends rows, each with its values for the result columns under their names without the prefix."""
        self._file.write(dump_lines(rows, results, self._schema))

    def close(self) -> None:
        """Nothing is held back."""
        self.sha256 = self._file.hexdigest()


def dump_lines(rows: Sequence[Row], results: pa.RecordBatch, schema: OutputSchema) -> bytes:
    """Every line has every column; a row that came from JSONL keeps its values as they were."""
    kept_names = schema.kept.names
    result_names = list(zip(schema.results.names, schema.result_names, strict=True))
    lines = []
    for row, result in zip(rows, results.to_pylist(), strict=True):
        values = row.to_dict(kept_names)
        for name, written in result_names:
            values[written] = result[name]
        lines.append(dump(values) + b"\n")
    return b"".join(lines)
