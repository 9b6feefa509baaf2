"""Publishes an output at once or not at all.

    out.parquet            nothing, or the old file          the complete new file
    .out-1f2e3d4c.tmp      grows, row group by row group  ---^ renamed when synced and read back

Whatever happens in between, SIGKILL and a power cut included, leaves the left column. Readers of data sets pass over
names that begin with a dot.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Self

from infer.io import storage
from infer.io.errors import OutputExistsError, OutputNameError
from infer.io.jsonl_writer import JsonlWriter
from infer.io.parquet_writer import ParquetWriter
from infer.io.paths import STANDARD_INPUT, FileFormat, input_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from infer.io.row import Row
    from infer.io.schema import OutputSchema
    from infer.io.storage import NewFile

_MAX_NAME = 40


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
        # Through links: what is replaced is the file, not a link to it.
        self.path = Path(path).resolve()
        self.num_rows = 0
        self._schema = schema
        self._writer_class = _writer_class(self.path)
        _check_is_no_input(self.path, inputs)
        _check_is_free(self.path, overwrite=overwrite)

    def __enter__(self) -> Self:
        name = f".{self.path.stem[:_MAX_NAME]}-{secrets.token_hex(4)}.tmp"
        self._file: NewFile = storage.NewFile(self.path.with_name(name))
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
            storage.rename(self._file.path, self.path)
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


def _check_is_no_input(path: Path, inputs: Iterable[str | Path]) -> None:
    names = [str(name) for name in inputs if str(name) != STANDARD_INPUT]
    if path.exists() and any(path.samefile(file.path) for file in input_files(names)):
        raise OutputExistsError(f"the output is one of the inputs: {path}", "choose another name with -o")


def _check_is_free(path: Path, *, overwrite: bool) -> None:
    if path.exists() and not path.is_file():
        raise OutputExistsError(f"the output is there and no regular file: {path}", "choose another name with -o")
    if path.exists() and not overwrite:
        raise OutputExistsError(f"the output exists: {path}", "replace it with --overwrite")
