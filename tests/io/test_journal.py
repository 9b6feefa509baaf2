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
        assert caught.value.hint == "begin again with --restart, which discards it"


def test_empty_line_before_a_good_one_is_an_error() -> None:
    with pytest.raises(StateError, match=r"^the journal is damaged behind byte 0$"):
        decode_journal(b"\n" + JOURNAL)


def test_damaged_journal_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    damaged = b"x" + JOURNAL
    path.write_bytes(damaged)
    for read in (read_journal, Journal):
        with pytest.raises(StateError) as caught:
            read(path)
        assert str(caught.value) == f"the journal is damaged behind byte 0: {path}"
        assert caught.value.hint == "begin again with --restart, which discards it"
        assert path.read_bytes() == damaged


def test_record_of_an_unknown_kind_is_an_error() -> None:
    for data in (
        b'{"type":"other"}',
        b'{"type":"entered","last_row":1,"more":2}',
        b'{"last_row":1}',
        b"[]",
        b"7",
        b"{",
    ):
        with pytest.raises(StateError) as caught:
            decode_line(b"%08x %s" % (zlib.crc32(data), data))
        assert str(caught.value) == f"the journal has a record of an unknown kind: {data.decode()}"
        assert caught.value.hint == "it is a newer infer's: run that one, or --restart"


def test_record_of_an_unknown_kind_is_shown_in_part_and_whatever_its_bytes_are() -> None:
    data = b"\xff" + b"x" * 300
    with pytest.raises(StateError) as caught:
        decode_line(b"%08x %s" % (zlib.crc32(data), data))
    assert str(caught.value).endswith(": \\xff" + "x" * 199)


def test_records_hold_records_whatever_they_were_made_of() -> None:
    file = FileRecord(10, "cd" * 32)
    for files in ((file,), [file], [{"num_bytes": 10, "sha256": "cd" * 32}]):
        assert PublishRecord(files).files == (file,)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["../seg-000001.parquet", "seg-1.parquet", "seg-000001.parquet/x", "", "/" * 200])
def test_name_that_is_no_segments_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"^no name of a segment: {repr(name)[:80]}$"):
        SegmentRecord(name, 1, 0, 0, 1, "", "")


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


@pytest.mark.parametrize("tail", [b"", b"torn"])
def test_journal_that_is_there_reaches_the_disk_before_it_is_gone_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: bytes
) -> None:
    (tmp_path / "journal").write_bytes(JOURNAL + tail)
    synced: list[int] = []
    monkeypatch.setattr(storage.os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    with Journal(tmp_path / "journal"):
        assert synced == [len(JOURNAL)]


def test_journal_that_cannot_be_opened_holds_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "journal").write_bytes(JOURNAL)
    monkeypatch.setattr(storage.os, "fdatasync", refuse)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(StorageError, match="input/output error"):
        Journal(tmp_path / "journal")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_journal_takes_nothing_after_it_could_not_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError(errno.EIO, os.strerror(errno.EIO))]

    def fail_once(_: int) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(storage.os, "fdatasync", fail_once)
    with Journal(tmp_path / "journal") as journal:
        with pytest.raises(StorageError, match="input/output error"):
            journal.commit(EnteredRecord(1))
        # The system may have given the line up: a good one behind it would make what is lost look like damage.
        with pytest.raises(StorageError, match="it failed before"):
            journal.commit(EnteredRecord(2))


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
