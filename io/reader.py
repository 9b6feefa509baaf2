"""The input of a run: files, globs, directories and standard input as one data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from infer.io.errors import InputError
from infer.io.jsonl import JsonlSource
from infer.io.parquet import ParquetSource
from infer.io.paths import FileFormat, input_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from infer.io.input_content import InputBytes
    from infer.io.row import Row


class Source(Protocol):
    """Rows to be pulled, in the order of the inputs, holding a bounded number of them at a time."""

    paths: tuple[Path, ...]
    schema: pa.Schema
    num_rows: int
    notes: tuple[str, ...]
    """What a person should be told about the input."""
    partitions: Sequence[Mapping[str, str | None]]
    """Of each file the columns that its path stands for; empty where none does."""

    def contents(self) -> list[InputBytes]:
        """The files as they lie on the disk, those of which there are rows."""

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """The rows, each with the values of `columns`: all that will be asked for or kept.

        Raises:
            InputError: there is no such column, or (while iterating) a file is damaged or has changed.
        """


def open_source(paths: Sequence[str], *, limit: int | None = None) -> Source:
    """The rows behind `paths`, or the first `limit` of them. Everything is checked that can be before row 0.

    A path is a file, a directory, a glob or `-` for JSONL on standard input; the name says the format.

    Raises:
        InputError: a path that is not there, an unknown format or several, a damaged file, files that do not fit.
    """
    files = input_files(paths)
    if not files:
        raise InputError("no input")
    return ParquetSource(files, limit) if files[0].format is FileFormat.PARQUET else JsonlSource(files, limit)
