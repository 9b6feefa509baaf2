"""The journal gives back what was written to it, whatever of its end was torn off, and nothing else."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer.io import storage
from infer.io.errors import StateError, StorageError
from infer.io.journal import (
    AloneRecord,
    AttemptRecord,
    DropRecord,
    EnteredRecord,
    FileRecord,
    FinalRecord,
    Journal,
    JournalRecord,
    PublishRecord,
    ReopenRecord,
    SegmentRecord,
    StopRecord,
    decode_journal,
    decode_line,
    encode_record,
    read_journal,
)

SEGMENT = SegmentRecord("seg-000001.parquet", 3, 0, 7, 120, "ab" * 32, "2026-01-01T00:00:00+00:00", {"oom": 1})
RECORDS: list[JournalRecord] = [
    AttemptRecord("2026-01-01T00:00:00+00:00", "host \u2028 name", "boot", 7),
    EnteredRecord(63),
    AloneRecord(4),
    SEGMENT,
    DropRecord("seg-000001.parquet"),
    StopRecord("SIGTERM"),
    PublishRecord((FileRecord(10, "cd" * 32), FileRecord(11, "ef" * 32))),
    FinalRecord(9, {"timeout": 2}),
    ReopenRecord((SEGMENT,)),
]
JOURNAL = b"".join(map(encode_record, RECORDS))


def test_journal_gives_back_every_kind_of_record() -> None:
    assert {type(record) for record in RECORDS} == set(JournalRecord.__args__)  # type: ignore[attr-defined]
    assert decode_journal(JOURNAL) == (RECORDS, len(JOURNAL))
    assert decode_journal(b"") == ([], 0)


def test_line_is_a_checksum_and_json() -> None:
    line = encode_record(EnteredRecord(63))
    assert line == b'%08x {"type":"entered","last_row":63}\n' % zlib.crc32(b'{"type":"entered","last_row":63}')


@pytest.mark.parametrize("cut", range(len(encode_record(SEGMENT))))
def test_torn_end_is_cut_off(tmp_path: Path, cut: int) -> None:
    whole, last = encode_record(EnteredRecord(1)), encode_record(SEGMENT)
    path = tmp_path / "journal"
    path.write_bytes(whole + last[:cut])
    assert read_journal(path) == [EnteredRecord(1)]
    assert path.read_bytes() == whole + last[:cut]
    with Journal(path) as journal:
        assert journal.records == [EnteredRecord(1)]
        journal.commit(StopRecord("x"))
    assert path.read_bytes() == whole + encode_record(StopRecord("x"))


@pytest.mark.parametrize("tail", [b"\0" * 40, b"\0" * 40 + b"\n", b"\n", b"garbage\n\n\n", b"00000000 {}\n"])
def test_end_that_a_power_cut_may_leave_is_cut_off(tail: bytes) -> None:
    assert decode_journal(JOURNAL + tail) == (RECORDS, len(JOURNAL))


@given(st.binary(max_size=60))
def test_any_end_leaves_what_is_before_it(tail: bytes) -> None:
    assert decode_journal(JOURNAL + tail) == (RECORDS, len(JOURNAL))


def test_bad_line_before_a_good_one_is_an_error() -> None:
    first = encode_record(RECORDS[0])
    for position in range(len(first) - 1):
        damaged = bytearray(JOURNAL)
        damaged[position] ^= 1
        with pytest.raises(StateError, match=r"^the journal is damaged behind byte 0$") as caught:
            decode_journal(bytes(damaged))
        assert "--restart" in caught.value.hint


def test_record_of_an_unknown_kind_is_an_error() -> None:
    for data in (
        b'{"type":"other"}',
        b'{"type":"entered","last_row":1,"more":2}',
        b'{"last_row":1}',
        b"[]",
        b"7",
        b"{",
    ):
        with pytest.raises(StateError, match="of an unknown kind"):
            decode_line(b"%08x %s" % (zlib.crc32(data), data))


def test_journal_that_is_missing_is_made_and_its_name_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(storage.os, "fsync", note)
    assert read_journal(tmp_path / "journal") == []
    with Journal(tmp_path / "journal") as journal:
        assert journal.records == []
    assert synced == [str(tmp_path)]


def test_commit_reaches_the_disk_and_note_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    fdatasync = os.fdatasync

    def note(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        fdatasync(descriptor)

    monkeypatch.setattr(storage.os, "fdatasync", note)
    with Journal(tmp_path / "journal") as journal:
        journal.note(EnteredRecord(1))
        assert sizes == []
        journal.commit(SEGMENT)
        assert sizes == [len(encode_record(EnteredRecord(1)) + encode_record(SEGMENT))]
        assert journal.records == [EnteredRecord(1), SEGMENT]
    assert read_journal(tmp_path / "journal") == [EnteredRecord(1), SEGMENT]


def test_journal_takes_nothing_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def fill_up(descriptor: int, data: bytes) -> int:
        if len(data) > 10:
            return write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal(tmp_path / "journal") as journal:
        journal.commit(EnteredRecord(1))
        with monkeypatch.context() as patched:
            patched.setattr(storage.os, "write", fill_up)
            with pytest.raises(StorageError, match="no space left on device"):
                journal.commit(EnteredRecord(2))
        # Part of a line may be there: a whole one behind it would make it look like damage.
        with pytest.raises(StorageError, match="it failed before"):
            journal.note(StopRecord("error"))
        assert journal.records == [EnteredRecord(1)]
    assert read_journal(tmp_path / "journal") == [EnteredRecord(1)]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(storage.os, "write", lambda descriptor, data: write(descriptor, bytes(data[:3])))
    with Journal(tmp_path / "journal") as journal:
        journal.commit(SEGMENT)
    assert (tmp_path / "journal").read_bytes() == encode_record(SEGMENT)
