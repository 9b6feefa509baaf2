"""The journal of a run: what has happened, in order, a line a record.

    9f3a01c2 {"type": "segment", ...}
    ^ crc32 of the JSON, in hexadecimal

It is only appended to, so a crash can damage nothing but its end: what stands there and is no whole line is cut off
when it is opened again. A bad line that has a good one behind it has not been left by a crash, and is an error.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import orjson

from infer.io.errors import StateError
from infer.io.storage import AppendFile, read_bytes, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


SEGMENT_NAME = re.compile(r"seg-\d{6,}\.parquet")


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A process has begun to work on the run."""

    type: ClassVar[str] = "attempt"
    started: str
    """ISO 8601, UTC."""
    host: str
    boot_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class EnteredRecord:
    """Rows up to `last_row` may be under way. Written before they are: after a death it is known which were."""

    type: ClassVar[str] = "entered"
    last_row: int


@dataclass(frozen=True, slots=True)
class AloneRecord:
    """From here on only this row is under way."""

    type: ClassVar[str] = "alone"
    row: int


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """Rows are saved: their segment has reached the disk."""

    type: ClassVar[str] = "segment"
    name: str
    num_rows: int
    first_row: int
    last_row: int
    num_bytes: int
    sha256: str
    saved: str
    """When: ISO 8601, UTC."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """How many of its rows failed, by code."""

    def __post_init__(self) -> None:
        # It becomes a path.
        if not SEGMENT_NAME.fullmatch(self.name):
            raise ValueError(f"no name of a segment: {self.name!r:.80}")


@dataclass(frozen=True, slots=True)
class DropRecord:
    """A segment was found damaged; its rows are no longer saved."""

    type: ClassVar[str] = "drop"
    name: str


@dataclass(frozen=True, slots=True)
class StopRecord:
    """The attempt was asked to end, and is no crash."""

    type: ClassVar[str] = "stop"
    reason: str


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that the output consists of."""

    num_bytes: int
    sha256: str
    """Of a Parquet file the digest that it carries itself."""


@dataclass(frozen=True, slots=True)
class PublishRecord:
    """Files of this content are about to be given the output's name: the one, or the parts of a directory."""

    type: ClassVar[str] = "publish"
    files: tuple[FileRecord, ...]
    record: Mapping[str, Any] = field(default_factory=dict)
    """What the run says of its output: an `OutputRecord` as JSON."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", _records(FileRecord, self.files))


@dataclass(frozen=True, slots=True)
class FinalRecord:
    """The output is there; no segment is needed any more."""

    type: ClassVar[str] = "final"
    num_rows: int
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReopenRecord:
    """After the end: all rows but those of these segments are to be run again."""

    type: ClassVar[str] = "reopen"
    segments: tuple[SegmentRecord, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", _records(SegmentRecord, self.segments))


def _records(kind: type[Any], values: Iterable[Any]) -> tuple[Any, ...]:
    """As they are, or made of what JSON has of them."""
    return tuple(kind(**each) if isinstance(each, dict) else each for each in values)


JournalRecord = (
    AttemptRecord
    | EnteredRecord
    | AloneRecord
    | SegmentRecord
    | DropRecord
    | StopRecord
    | PublishRecord
    | FinalRecord
    | ReopenRecord
)
_KINDS: dict[str, Any] = {kind.type: kind for kind in JournalRecord.__args__}


def segment_number(name: str) -> int:
    """The 12 of `seg-000012.parquet`."""
    return int(name[len("seg-") : -len(".parquet")])


def encode_record(record: JournalRecord) -> bytes:
    """The line of `record`, with its line end."""
    data = orjson.dumps({"type": record.type, **asdict(record)})
    return b"%08x %s\n" % (zlib.crc32(data), data)


def decode_line(line: bytes) -> JournalRecord | None:
    """The record of a line without its line end; None where the line is not whole.

    Raises:
        StateError: the line is whole, and of a version of the format that is not known here.
    """
    checksum, _, data = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(data):
        return None
    try:
        values = orjson.loads(data)
        kind = _KINDS[values.pop("type")]
        if values.keys() - {each.name for each in fields(kind)}:
            raise KeyError(line)
        record: JournalRecord = kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        shown = data[:200].decode(errors="backslashreplace")
        raise StateError(
            f"the journal has a record of an unknown kind: {shown}", "it is a newer infer's: run that one, or --restart"
        ) from error
    return record


def decode_journal(data: bytes) -> tuple[list[JournalRecord], int]:
    """The records of a journal, and how many of its bytes they take; the rest was torn.

    Raises:
        StateError: a line is damaged that is not the last.
    """
    records: list[JournalRecord] = []
    num_bytes = position = 0
    while (end := data.find(b"\n", position)) >= 0:
        record = decode_line(data[position:end])
        if record is not None:
            if num_bytes < position:
                raise StateError(
                    f"the journal is damaged behind byte {num_bytes}", "begin again with --restart, which discards it"
                )
            records.append(record)
            num_bytes = end + 1
        position = end + 1
    return records, num_bytes


def read_journal(path: Path) -> list[JournalRecord]:
    """The whole records of a journal that may be growing.

    Raises:
        StateError: a line is damaged that is not the last.
        StorageError: it cannot be read.
    """
    return _decode(read_bytes(path), path)[0]


def _decode(data: bytes | None, path: Path) -> tuple[list[JournalRecord], int]:
    try:
        return decode_journal(data or b"")
    except StateError as error:
        raise StateError(f"{error}: {path}", error.hint) from error


class Journal:
    """A journal to be appended to, made where there is none; what was torn is cut off.

    Raises:
        StateError: a line is damaged that is not the last.
        StorageError: the file system refused.
    """

    def __init__(self, path: Path) -> None:
        data = read_bytes(path)
        self.records, num_bytes = _decode(data, path)
        self._file = AppendFile(path)
        try:
            if data is None:
                sync_directory(path.parent)
            elif num_bytes < len(data):
                self._file.truncate(num_bytes)
            else:
                # Who wrote the last lines may have been killed before they had reached the disk.
                self._file.sync()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, record: JournalRecord) -> None:
        """Append what only the end of this process makes worth knowing; a power cut may lose it."""
        self._file.append(encode_record(record))
        self.records.append(record)

    def commit(self, record: JournalRecord) -> None:
        """Returns when the record has reached the disk."""
        self.note(record)
        self._file.sync()

    def close(self) -> None:
        self._file.close()
