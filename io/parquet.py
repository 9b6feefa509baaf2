"""Reads Parquet files: a bounded number of rows at a time, only the columns asked for, kept as Arrow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from infer.io.arrow_value import to_list, to_python
from infer.io.errors import InputError
from infer.io.readable import reading
from infer.io.row import Row, RowError
from infer.io.schema import check_columns
from infer.io.unify import conform, unify_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from infer.io.input_content import InputBytes
    from infer.io.paths import InputFile

_MAX_BLOCK_ROWS = 512
_BLOCK_BYTES = 8 << 20
_READ_BUFFER_BYTES = 1 << 20
# A page is decompressed whole, so these bound what one row of a file can cost.
_MAX_INFLATION = 1000
_MIN_INFLATED_BYTES = 256 << 20


class ParquetSource:
    """The rows of several Parquet files of one schema. Their footers are read and compared at once.

    `limit` ends the data set after so many rows; `notes` holds what a person should be told about it.

    Raises:
        InputError: a file that is no Parquet, or does not fit the others.
    """

    def __init__(self, files: Sequence[InputFile], limit: int | None = None) -> None:
        footers = [(file, *_read_footer(file.path)) for file in files]
        file_schema = unify_schemas((file.path, schema) for file, schema, _ in footers)
        shadowed = {key for file in files for key in file.partition if key in file_schema.names}
        partition_schema = _partition_schema([file.partition for file in files], shadowed)

        self.paths = tuple(file.path for file in files)
        self.schema = pa.schema([*file_schema, *partition_schema])
        self.notes = tuple(
            f"partition key {key} is also a column of the files: the column is used" for key in sorted(shadowed)
        )
        num_rows = sum(rows for _, _, rows in footers)
        self.num_rows = num_rows if limit is None else min(num_rows, limit)
        self._parts = [_Part(file.path, rows, _partition_values(file, partition_schema)) for file, _, rows in footers]

    def contents(self) -> list[InputBytes]:
        return [(str(path), partial(_open_raw, path)) for path in self.paths]

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """The rows in order, each with the values of `columns`.

        Raises:
            InputError: there is no such column, or (while iterating) a file is damaged or has changed.
        """
        check_columns(columns, self.schema)
        wanted = pa.schema([self.schema.field(name) for name in dict.fromkeys(columns)])
        return islice(self._rows(wanted), self.num_rows)

    def _rows(self, wanted: pa.Schema) -> Iterator[Row]:
        first_row = 0
        for part in self._parts:
            row_in_file = 0
            for batch in part.batches(wanted):
                yield from _block_rows(batch, part.path, row_in_file, first_row + row_in_file)
                row_in_file += batch.num_rows
            first_row += part.num_rows


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
    """One file: how many rows its footer promised, and its partition keys."""

    path: Path
    num_rows: int
    partition: Mapping[str, pa.Scalar]

    def batches(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of the file as batches of exactly the schema `wanted`."""
        with reading(self.path), _open(self.path) as file:
            if file.metadata.num_rows != self.num_rows:
                raise InputError(f"the file has changed since it was opened: {self.path}")
            known = set(file.schema_arrow.names)
            names = [name for name in wanted.names if name in known]
            block_rows = _block_num_rows(file.metadata, names)
            num_rows = 0
            for batch in file.iter_batches(block_rows, columns=names, use_threads=False):
                num_rows += batch.num_rows
                # From the empty selection, which still knows its number of rows: no column at all may be wanted.
                conformed = batch.select([])
                for field in wanted:
                    conformed = conformed.append_column(field, self._column(batch, field))
                yield conformed
            if num_rows != self.num_rows:
                raise InputError(f"the footer promises {self.num_rows} rows, the file holds {num_rows}: {self.path}")

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in batch.schema.names:
            return conform(batch.column(field.name), field.type)
        if field.name in self.partition:
            return pa.repeat(self.partition[field.name], batch.num_rows)
        return pa.nulls(batch.num_rows, field.type)


def _open_raw(path: Path) -> BinaryIO:
    return path.open("rb", buffering=_READ_BUFFER_BYTES)


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


def _block_num_rows(metadata: pq.FileMetaData, names: Sequence[str]) -> int:
    """How many rows of the columns `names` are read at once: what the widest row group can bear."""
    prefixes = tuple(name + "." for name in names)
    paths = [metadata.schema.column(leaf).path + "." for leaf in range(metadata.num_columns)]
    leaves = [leaf for leaf, path in enumerate(paths) if path.startswith(prefixes)]
    row_bytes = 1
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        num_bytes = sum(group.column(leaf).total_uncompressed_size for leaf in leaves)
        row_bytes = max(row_bytes, num_bytes // max(1, group.num_rows))
    return max(1, min(_MAX_BLOCK_ROWS, _BLOCK_BYTES // row_bytes))


def _read_footer(path: Path) -> tuple[pa.Schema, int]:
    with reading(path), _open(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
        name, count = max(Counter(schema.names).items(), key=itemgetter(1), default=("", 0))
        if count > 1:
            raise InputError(f"more than one column has the name {name}: {path}")
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        inflated = max((group.total_byte_size for group in groups), default=0)
        if inflated > max(_MIN_INFLATED_BYTES, _MAX_INFLATION * path.stat().st_size):
            raise InputError(
                f"a row group unpacks to {inflated / 2**30:.1f} GiB from a file of {path.stat().st_size} bytes: {path}",
                "write the file again with smaller row groups",
            )
        # What pandas and others noted there about the whole table is no longer true of our output.
        return schema.remove_metadata(), metadata.num_rows


def _open(path: Path) -> pq.ParquetFile:
    # Pages are read through a small buffer, not a column chunk at a time: a row group may be the whole file.
    return pq.ParquetFile(path, buffer_size=_READ_BUFFER_BYTES, page_checksum_verification=True)


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
