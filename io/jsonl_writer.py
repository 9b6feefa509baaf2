"""Writes rows to JSONL, a line at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.io.errors import StorageError
from infer.io.json_value import dump

if TYPE_CHECKING:
    from infer.io.row import Row
    from infer.io.schema import OutputSchema
    from infer.io.storage import NewFile


class JsonlWriter:
    """Every line has every column; a row that came from JSONL keeps its values as they were."""

    def __init__(self, file: NewFile, schema: OutputSchema) -> None:
        self._file = file
        self._kept_names = schema.kept.names
        self._result_names = list(zip(schema.results.names, schema.result_names, strict=True))

    def write(self, records: list[tuple[Row, dict[str, object]]]) -> None:
        lines = []
        for row, result in records:
            values = row.to_dict(self._kept_names)
            for name, written in self._result_names:
                values[written] = result[name]
            lines.append(dump(values) + b"\n")
        self._file.write(b"".join(lines))

    def close(self) -> None:
        """Nothing is held back."""

    def check(self, num_rows: int) -> None:
        """Returns if the file is as long as what was written for the `num_rows` rows.

        Raises:
            StorageError: it is not.
        """
        path = self._file.path
        written, found = self._file.tell(), path.stat().st_size
        if found != written:
            raise StorageError(f"{num_rows} rows of {written} bytes were written, but {found} bytes are there: {path}")
