"""Reads Parquet files: a bounded number of rows at a time, only the columns asked for, kept as Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from infer.io.arrow_value import to_list, to_python
from infer.io.parquet_file import read_batches, read_footer
from infer.io.readable import reading
from infer.io.row import Row, RowError
from infer.io.schema import check_columns
from infer.io.unify import conform, unify_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from infer.io.input_content import InputBytes
    from infer.io.parquet_file import Footer
    from infer.io.paths import InputFile


class ParquetSource:
    """The rows of several Parquet files of one schema. Their footers are read and compared at once.

    `limit` ends the data set after so many rows; `notes` holds what a person should be told about it.

    Raises:
        InputError: a file that is no Parquet, or does not fit the others.
    """

    def __init__(self, files: Sequence[InputFile], limit: int | None = None) -> None:
        footers = [(file, read_footer(file.path)) for file in files]
        file_schema = unify_schemas((file.path, footer.schema) for file, footer in footers)
        shadowed = {key for file in files for key in file.partition if key in file_schema.names}
        partition_schema = _partition_schema([file.partition for file in files], shadowed)

        self.paths = tuple(file.path for file in files)
        self.schema = pa.schema([*file_schema, *partition_schema])
        self.notes = tuple(
            f"partition key {key} is also a column of the files: the column is used" for key in sorted(shadowed)
        )
        partitions = [file.partition for file in files]
        self.partitions: Sequence[Mapping[str, str | None]] = partitions if any(partitions) else ()
        num_rows = sum(footer.num_rows for _, footer in footers)
        self._limit = limit
        self.num_rows = num_rows if limit is None else min(num_rows, limit)
        self._parts = [_Part(file.path, footer, _partition_values(file, partition_schema)) for file, footer in footers]

    def contents(self) -> list[InputBytes]:
        return [(str(path), partial(_open_raw, path)) for path in self.paths]

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """The rows in order, each with the values of `columns`.

        Raises:
            InputError: there is no such column, or (while iterating) a file is damaged or has changed.
        """
        check_columns(columns, self.schema)
        wanted = pa.schema([self.schema.field(name) for name in dict.fromkeys(columns)])
        rows = self._rows(wanted)
        return rows if self._limit is None else islice(rows, self._limit)

    def _rows(self, wanted: pa.Schema) -> Iterator[Row]:
        first_row = 0
        for part in self._parts:
            row_in_file = 0
            for batch in part.batches(wanted):
                yield from _block_rows(batch, part.path, row_in_file, first_row + row_in_file)
                row_in_file += batch.num_rows
            first_row += part.footer.num_rows


class ArrowBlock:
    """Rows of one record batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._values: dict[str, list[object] | None] = {}

    def value(self, offset: int, name: str) -> object:
        if name not in self._values:
            self._values[name] = to_list(self._batch.column(name))
        values = self._values[name]
        return to_python(self._batch.column(name)[offset]) if values is None else values[offset]

    def columns(self, offsets: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
        selected = self._batch.select(schema.names)
        is_run = offsets[-1] - offsets[0] + 1 == len(offsets)
        return selected.slice(offsets[0], len(offsets)) if is_run else selected.take(pa.array(offsets))


@dataclass(frozen=True, slots=True)
class _Part:
    """One file, what its footer said, and its partition keys."""

    path: Path
    footer: Footer
    partition: Mapping[str, pa.Scalar]

    def batches(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of the file as batches of exactly the schema `wanted`."""
        for batch in read_batches(self.path, self.footer, set(wanted.names)):
            with reading(self.path):
                columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
                arrays = [self._column(columns.get(field.name), field, batch.num_rows) for field in wanted]
            # An empty selection still knows its number of rows.
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted) if arrays else batch.select([])

    def _column(self, column: pa.Array | None, field: pa.Field, num_rows: int) -> pa.Array:
        if column is not None:
            return conform(column, field.type)
        if field.name in self.partition:
            return pa.repeat(self.partition[field.name], num_rows)
        return pa.nulls(num_rows, field.type)


def _open_raw(path: Path) -> BinaryIO:
    return path.open("rb")


def _block_rows(batch: pa.RecordBatch, path: Path, row_in_file: int, index: int) -> Iterator[Row]:
    block = ArrowBlock(batch)
    unreadable = _unreadable_rows(batch)
    for offset in range(batch.num_rows):
        if offset in unreadable:
            message = f"{path}: row {row_in_file + offset}: column {unreadable[offset]} is not valid UTF-8"
            yield Row(index + offset, None, error=RowError("invalid_unicode", message))
        else:
            yield Row(index + offset, block, offset)


def _unreadable_rows(batch: pa.RecordBatch) -> dict[int, str]:
    """Offsets of the rows that hold broken text, and the column it stands in."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        columns = list(zip(batch.schema.names, batch.columns, strict=True))
        return {
            offset: name
            for offset in range(batch.num_rows)
            for name, column in reversed(columns)
            if not _is_readable(column[offset])
        }
    return {}


def _is_readable(scalar: pa.Scalar) -> bool:
    try:
        to_python(scalar)
    except UnicodeDecodeError:
        return False
    return True


def _partition_schema(partitions: Sequence[Mapping[str, str | None]], shadowed: set[str]) -> pa.Schema:
    """Partition keys as columns: integers where every value is one, text otherwise."""
    values: dict[str, list[str]] = {}
    for partition in partitions:
        for key, value in partition.items():
            if key not in shadowed:
                values.setdefault(key, []).extend([] if value is None else [value])
    types = {key: pa.int64() if all(map(_is_int64, texts)) else pa.string() for key, texts in values.items()}
    return pa.schema(types.items())


def _partition_values(file: InputFile, schema: pa.Schema) -> dict[str, pa.Scalar]:
    texts = {name: file.partition.get(name) for name in schema.names}
    return {name: pa.scalar(text, pa.string()).cast(schema.field(name).type) for name, text in texts.items()}


def _is_int64(text: str) -> bool:
    # `07` is a name, not a number: written back as 7 it would be another directory.
    return text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) < 19 and str(int(text)) == text
