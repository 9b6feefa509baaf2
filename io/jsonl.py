"""Reads JSONL files: one JSON object a line, a bad line is a bad row.

The columns and their types come from reading everything once before the first row, so that no first window decides
them. The rows keep their own values: what is written to JSONL again is what was read.
"""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from infer.io.errors import InputError
from infer.io.json_type import JsonType
from infer.io.json_value import InvalidLineError, parse_object
from infer.io.lines import MAX_LINE_BYTES, read_lines
from infer.io.other_formats import other_format
from infer.io.paths import STANDARD_INPUT
from infer.io.readable import ReadPosition, reading
from infer.io.row import Row, RowError
from infer.io.schema import check_columns
from infer.io.standard_input import StandardInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from infer.io.input_content import InputBytes
    from infer.io.json_type import Converter
    from infer.io.lines import Line
    from infer.io.paths import InputFile

_MAX_BLOCK_ROWS = 512
_BLOCK_BYTES = 1 << 20
_MAX_COLUMNS = 10_000
_MAX_LISTED = 8
_READ_BUFFER_BYTES = 1 << 20
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_ARRAY_HINT = "JSONL has one object a line: jq -c '.[]' makes that of a list, jq -c . of objects over several lines"


class JsonlSource:
    """The rows of several JSONL files. All of it is read at once for the columns, or up to `limit` rows.

    `limit` ends the data set after so many rows; `notes` holds what a person should be told about it.

    Raises:
        InputError: a file that cannot be read, or more columns than a table should have.
    """

    def __init__(self, files: Sequence[InputFile], limit: int | None = None) -> None:
        self.paths = tuple(file.path for file in files)
        self.notes: tuple[str, ...] = ()
        self.partitions: Sequence[Mapping[str, str | None]] = ()
        self.num_rows = 0
        self._types: dict[str, JsonType] = {}
        self._parts: list[_Part] = []
        self._first_error: tuple[str, InvalidLineError] | None = None
        for path in self.paths:
            num_left = None if limit is None else limit - self.num_rows
            if num_left == 0:
                break
            part = self._scan(_opened(path, num_left), num_left)
            self._parts.append(part)
            self.num_rows += part.num_rows
        self._check_has_columns()
        self.schema = pa.schema([(name, type_.arrow_type()) for name, type_ in self._types.items()])
        mixed = [name for name, type_ in self._types.items() if type_.is_mixed]
        if mixed:
            listed = ", ".join(mixed[:_MAX_LISTED]) + (", ..." if len(mixed) > _MAX_LISTED else "")
            self.notes = (f"values of several types, which in Parquet become JSON text: {listed}",)

    def contents(self) -> list[InputBytes]:
        return [(part.file.name, part.file.open_raw) for part in self._parts]

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """The rows in order, each with the values of `columns`.

        Raises:
            InputError: there is no such column, or (while iterating) a file has changed.
        """
        check_columns(columns, self.schema)
        return self._rows({name: self._types[name].converter() for name in columns})

    def _scan(self, file: _File, limit: int | None) -> _Part:
        num_rows = num_bytes = checksum = 0
        position = ReadPosition(file.name, "line")
        with reading(position, file.damage_hint), file.open() as stream:
            for line in islice(read_lines(stream), limit):
                if num_rows == 0:
                    _check_is_text(line, file.name)
                num_rows += 1
                num_bytes = line.end
                checksum = zlib.crc32(line.text or b"", checksum)
                position.last = line.number
                try:
                    values = _parse(line)
                except InvalidLineError as error:
                    self._first_error = self._first_error or (f"{file.name}:{line.number}", error)
                    continue
                for name, value in values.items():
                    type_ = self._types.get(name)
                    if type_ is None:
                        type_ = self._add_column(name, f"{file.name}:{line.number}")
                    type_.add(value)
        return _Part(file, num_rows, num_bytes, checksum)

    def _check_has_columns(self) -> None:
        if self._first_error is not None and not self._types:
            place, error = self._first_error
            message = f"no line is a JSON object with a field, the first bad one is {place}: {error}"
            raise InputError(message, _ARRAY_HINT)

    def _add_column(self, name: str, place: str) -> JsonType:
        if len(self._types) == _MAX_COLUMNS:
            raise InputError(f"{place}: more than {_MAX_COLUMNS} columns", "put what varies into one field")
        type_ = self._types[name] = JsonType()
        return type_

    def _rows(self, converters: Mapping[str, Converter | None]) -> Iterator[Row]:
        index = 0
        for part in self._parts:
            for lines in part.blocks():
                block = JsonBlock(converters)
                for line in lines:
                    yield _row(index, line, block, part.file.name)
                    index += 1


class JsonBlock:
    """Rows as they were parsed, with those of their values that are asked for."""

    def __init__(self, converters: Mapping[str, Converter | None]) -> None:
        self._converters = converters
        self._rows: list[dict[str, object]] = []

    def append(self, values: dict[str, object]) -> int:
        """Takes a row in and returns its offset."""
        self._rows.append({name: values[name] for name in self._converters if name in values})
        return len(self._rows) - 1

    def value(self, offset: int, name: str) -> object:
        return self._rows[offset].get(name)

    def columns(self, offsets: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self._column(offsets, field) for field in schema], schema=schema)

    def _column(self, offsets: Sequence[int], field: pa.Field) -> pa.Array:
        values = [self._rows[offset].get(field.name) for offset in offsets]
        convert = self._converters[field.name]
        try:
            return pa.array(values if convert is None else map(convert, values), field.type, size=len(values))
        except pa.ArrowException as error:
            message = f"column {field.name} has other types than it had at the start: the input has changed"
            raise InputError(message) from error


class _File(Protocol):
    """What lines are read from."""

    @property
    def name(self) -> str:
        """As it stands in messages."""

    @property
    def damage_hint(self) -> str:
        """What to do where its content cannot be read."""

    def open(self) -> BinaryIO:
        """A new reader, at the beginning."""

    def open_raw(self) -> BinaryIO:
        """The same of what lies on the disk, compressed or not."""


@dataclass(frozen=True, slots=True)
class _DiskFile:
    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def damage_hint(self) -> str:
        suffix = self.path.suffix.lower()
        return f"the file is damaged, incomplete or no {suffix}: copy or compress it again" if self._codec else ""

    def open(self) -> BinaryIO:
        if self._codec is None:
            return self.path.open("rb", buffering=_READ_BUFFER_BYTES)
        # Opened here: Arrow takes no name that is not UTF-8.
        stream = pa.input_stream(self.path.open("rb", buffering=0), self._codec)
        return io.BufferedReader(stream, _READ_BUFFER_BYTES)

    @property
    def _codec(self) -> str | None:
        return _COMPRESSIONS.get(self.path.suffix.lower())

    def open_raw(self) -> BinaryIO:
        return self.path.open("rb", buffering=_READ_BUFFER_BYTES)


@dataclass(frozen=True, slots=True)
class _Part:
    """What belongs to the data set of one file: lines that were added later do not."""

    file: _File
    num_rows: int
    num_bytes: int
    checksum: int
    """Of its lines."""

    def blocks(self) -> Iterator[list[Line]]:
        """The lines, as many at a time as one block should hold."""
        block: list[Line] = []
        num_rows = block_bytes = checksum = 0
        position = ReadPosition(self.file.name, "line")
        with reading(position, self.file.damage_hint), self.file.open() as stream:
            for line in read_lines(stream, self.num_bytes):
                block.append(line)
                block_bytes += len(line.text or b"")
                checksum = zlib.crc32(line.text or b"", checksum)
                position.last = line.number
                if len(block) == _MAX_BLOCK_ROWS or block_bytes >= _BLOCK_BYTES:
                    num_rows += len(block)
                    yield block
                    block, block_bytes = [], 0
        if (num_rows + len(block), checksum) != (self.num_rows, self.checksum):
            raise InputError(f"the file has changed since it was opened: {self.file.name}")
        yield block


def _opened(path: Path, limit: int | None) -> _File:
    return StandardInput(limit) if str(path) == STANDARD_INPUT else _DiskFile(path)


def _row(index: int, line: Line, block: JsonBlock, file_name: str) -> Row:
    try:
        return Row(index, block, block.append(_parse(line)))
    except InvalidLineError as error:
        # A file's name need not be UTF-8, and this goes into a column.
        shown = file_name.encode(errors="backslashreplace").decode()
        return Row(index, None, error=RowError(error.code, f"{shown}:{line.number}: {error}"))


def _check_is_text(first: Line, file_name: str) -> None:
    if hint := other_format(first.text or b""):
        raise InputError(f"this is no JSONL: {file_name}", hint)


def _parse(line: Line) -> dict[str, object]:
    if line.text is None:
        raise InvalidLineError(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    return parse_object(line.text)
