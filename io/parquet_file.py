"""One Parquet file: its footer checked before anything is read of it, its rows in batches of bounded size.

pyarrow looks at a column's entry in the footer in two ways. Where it reads, what is wrong with the entry (damage,
encryption) is an exception; where it is only asked about it, the process is aborted. So an entry is read first.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from infer.io.errors import InputError
from infer.io.other_formats import other_format
from infer.io.readable import ReadPosition, reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

MAX_BLOCK_ROWS = 512
_BLOCK_BYTES = 8 << 20
_READ_BUFFER_BYTES = 1 << 20
# A page is decompressed whole, so these bound what one row of a file can cost.
_MAX_INFLATION = 1000
_MIN_INFLATED_BYTES = 256 << 20
_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_TAIL_BYTES = 8
_DAMAGE_HINT = "the file is damaged or incomplete: copy or write it again"


@dataclass(frozen=True, slots=True)
class Footer:
    """What the end of a file says."""

    schema: pa.Schema
    num_rows: int
    checksum: int
    """Of the footer's bytes and its place: another file has another one."""


def read_footer(path: Path) -> Footer:
    """The footer of a file.

    Raises:
        InputError: the file is no Parquet, is encrypted or damaged, or would not fit into the memory.
    """
    with _reading(path), _open(path) as (file, stream):
        metadata, schema = file.metadata, file.schema_arrow
        _check_names(schema.names, "column", path)
        for field in schema:
            _check_fields(field.type, field.name, path)
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        _check_num_rows(metadata.num_rows, sum(group.num_rows for group in groups), path)
        inflated = max((group.total_byte_size for group in groups), default=0)
        if inflated > max(_MIN_INFLATED_BYTES, _MAX_INFLATION * path.stat().st_size):
            raise InputError(
                f"a row group unpacks to {inflated / 2**30:.1f} GiB from a file of {path.stat().st_size} bytes: {path}",
                "write the file again with smaller row groups",
            )
        # What pandas and others noted there about the whole table is no longer true of our output.
        return Footer(schema.remove_metadata(), metadata.num_rows, _checksum(stream))


def read_batches(path: Path, footer: Footer, wanted: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a file with those of the columns `wanted` that it has, and perhaps others.

    Raises:
        InputError: it is damaged, or not the file that `footer` was read from.
    """
    position = ReadPosition(path, "row")
    num_rows = 0
    with _reading(path, position), _open(path) as (file, stream):
        if _checksum(stream) != footer.checksum:
            raise InputError(f"the file has changed since it was opened: {path}")
        names = [name for name in file.schema_arrow.names if name in wanted]
        for group in range(file.metadata.num_row_groups):
            block_rows = _block_num_rows(file, group, names)
            for batch in file.iter_batches(block_rows, row_groups=[group], columns=names, use_threads=False):
                num_rows += batch.num_rows
                yield batch
                position.last = num_rows - 1
    _check_num_rows(footer.num_rows, num_rows, path)


def _block_num_rows(file: pq.ParquetFile, group: int, names: Sequence[str]) -> int:
    """How many rows of the columns `names` are read at once in a row group."""
    metadata = file.metadata.row_group(group)
    if metadata.num_rows <= 1 or not names:
        return MAX_BLOCK_ROWS
    first = next(file.iter_batches(1, row_groups=[group], columns=names, use_threads=False), None)
    if first is None:
        return MAX_BLOCK_ROWS
    # A value that is stored once and meant in every row takes no room in the file, but in each row that is read.
    in_first_row = sum(column.nbytes for column in first.columns if not _shares_values(column.type))
    num_bytes: int = sum(metadata.column(leaf).total_uncompressed_size for leaf in _leaves(file, set(names)))
    row_bytes = max(1, in_first_row, num_bytes // metadata.num_rows)
    return int(max(1, min(MAX_BLOCK_ROWS, _BLOCK_BYTES // row_bytes)))


def _shares_values(type_: pa.DataType) -> bool:
    """Whether an array of one row may hold the values of others."""
    return bool(types.is_dictionary(type_) or types.is_string_view(type_) or types.is_binary_view(type_))


def _leaves(file: pq.ParquetFile, names: Collection[str]) -> list[int]:
    """Which columns of the file, counted without their nesting, make up those of `names`.

    Not by their paths: `a.b` may be a column of this name, or a part of `a`.
    """
    leaves: list[int] = []
    begin = 0
    for field in file.schema_arrow:
        end = begin + _num_leaves(field.type)
        if field.name in names:
            leaves += range(begin, end)
        begin = end
    return leaves if begin == file.metadata.num_columns else []


def _num_leaves(type_: pa.DataType) -> int:
    if isinstance(type_, pa.BaseExtensionType):
        return _num_leaves(type_.storage_type)
    return sum(_num_leaves(type_.field(child).type) for child in range(type_.num_fields)) or 1


def _check_fields(type_: pa.DataType, place: str, path: Path) -> None:
    children = [type_.field(child) for child in range(type_.num_fields)]
    _check_names([child.name for child in children], f"field of {place}", path)
    for child in children:
        _check_fields(child.type, place, path)


def _check_names(names: Sequence[str], what: str, path: Path) -> None:
    name, count = max(Counter(names).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise InputError(f"more than one {what} has the name {name}: {path}", "rename all but one of them")


def _check_num_rows(promised: int, found: int, path: Path) -> None:
    if found != promised:
        raise InputError(f"the footer promises {promised} rows, the file holds {found}: {path}", _DAMAGE_HINT)


@contextmanager
def _open(path: Path) -> Iterator[tuple[pq.ParquetFile, BinaryIO]]:
    # Opened here: Arrow takes no name that is not UTF-8. Pages are read through a small buffer, not a column chunk at a
    # time: a row group may be the whole file.
    with (
        path.open("rb", buffering=0) as stream,
        pq.ParquetFile(stream, buffer_size=_READ_BUFFER_BYTES, page_checksum_verification=True) as file,
    ):
        yield file, stream


def _checksum(stream: BinaryIO) -> int:
    num_bytes = stream.seek(0, os.SEEK_END)
    stream.seek(num_bytes - _TAIL_BYTES)
    footer_bytes = int.from_bytes(stream.read(4), "little")
    stream.seek(num_bytes - _TAIL_BYTES - footer_bytes)
    return zlib.crc32(stream.read(footer_bytes), num_bytes)


@contextmanager
def _reading(path: Path, position: object = None) -> Iterator[None]:
    """As `reading`, and says of a file that is no Parquet what it is."""
    try:
        with reading(position or path, _DAMAGE_HINT):
            yield
    except InputError as error:
        cause = error.__cause__
        if cause is None or not error.hint:
            raise
        if "decrypt" in str(cause):
            raise InputError(f"the file is encrypted: {path}", "decrypt it first, no keys are taken") from cause
        with path.open("rb") as file:
            beginning = file.read(32)
        hint = "" if beginning.startswith((_MAGIC, _ENCRYPTED_MAGIC)) else other_format(beginning)
        raise InputError(str(error), hint or error.hint) from cause
