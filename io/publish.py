"""Publishes an output: written aside, synced, read back, renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from infer.io.aside import check_name, new_file, publish, resolved
from infer.io.errors import OutputNameError
from infer.io.jsonl_writer import JsonlWriter
from infer.io.parquet_writer import ParquetWriter
from infer.io.paths import FileFormat

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

    from infer.io.row import Row
    from infer.io.schema import OutputSchema
    from infer.io.storage import NewFile


class OutputFile:
    """The output of a run, Parquet or JSONL by its name. Rows are written inside `with`, in input order.

    A clean exit publishes; an exception leaves what was there before. The checks that need no writing are made at once.

    Raises:
        OutputExistsError: the name is taken and `overwrite` is not set, or it is one of `inputs`, by whatever path.
        OutputNameError: the name stands for no output format.
    """

    def __init__(
        self, path: str | Path, schema: OutputSchema, *, inputs: Iterable[str | Path] = (), overwrite: bool = False
    ) -> None:
        self.path = resolved(path)
        self._overwrite = overwrite
        self.num_rows = 0
        self._schema = schema
        self._writer_class = _writer_class(self.path)
        check_name(self.path, inputs=inputs, overwrite=overwrite)

    def __enter__(self) -> Self:
        self._file: NewFile = new_file(self.path)
        try:
            self._writer = self._writer_class(self._file, self._schema)
        except BaseException:
            self._file.discard()
            raise
        return self

    def write(self, records: list[tuple[Row, dict[str, object]]]) -> None:
        """Appends rows, each with its values for the result columns, by their names without the prefix.

        Raises:
            StorageError: the file system refused.
        """
        self._writer.write(records)
        self.num_rows += len(records)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error_type is not None:
            self._file.discard()
            return
        try:
            self._writer.close()
            self._file.commit()
            self._writer.check(self.num_rows)
            publish(self._file, self.path, overwrite=self._overwrite)
        except BaseException:
            self._file.discard()
            raise


def _writer_class(path: Path) -> type[ParquetWriter] | type[JsonlWriter]:
    if path.suffix.lower() in FileFormat.PARQUET.value:
        return ParquetWriter
    if path.suffix.lower() in FileFormat.JSONL.value:
        return JsonlWriter
    suffixes = " ".join(suffix for known in FileFormat for suffix in known.value)
    raise OutputNameError(f"unknown output format: {path.name}", f"formats: {suffixes}")
