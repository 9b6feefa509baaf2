"""What is saved of a run is there again, whatever happened in between."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from infer.io import run_state, storage
from infer.io.errors import LockedError, OutputExistsError, StateError, StorageError
from infer.io.fingerprint import Fingerprint
from infer.io.journal import (
    AttemptRecord,
    EnteredRecord,
    FileRecord,
    FinalRecord,
    Journal,
    PublishRecord,
    SegmentRecord,
    StopRecord,
    read_journal,
)
from infer.io.output_record import OutputColumns, OutputRecord
from infer.io.run_record import RunRecord
from infer.io.run_state import RunState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUTPUT = OutputRecord("1d", "ab", 10, OutputColumns((), {}))
SCHEMA = pa.schema([("response", pa.string()), ("error_code", pa.string()), ("_row", pa.int64())])


def run_record(num_rows: int = 10) -> RunRecord:
    fingerprint = Fingerprint({"rows": num_rows}, {"torch": "2"})
    return RunRecord("1f2e", "2026-01-01T00:00:00+00:00", num_rows, 7, fingerprint, {"prompt": "{x}"}, "/out.parquet")


def results(*rows: int, code: str | None = None) -> list[dict[str, object]]:
    return [{"response": None if code else f"r{row}", "error_code": code, "_row": row} for row in rows]


def opened(directory: Path) -> RunState:
    state = RunState(directory, ["infer", "run"])
    state.recover()
    return state


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet.infer"


@pytest.fixture
def begun(directory: Path) -> Iterator[RunState]:
    with opened(directory) as state:
        state.begin(run_record())
        state.begin_attempt()
        yield state


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_saved_rows_are_there_again(begun: RunState, directory: Path) -> None:
    begun.save(results(3, 1), SCHEMA)
    begun.save(results(2, code="oom"), SCHEMA)
    begun.close()
    with opened(directory) as state:
        assert state.run == run_record()
        assert list(state.saved) == [1, 2, 3]
        assert state.progress.failures == {"oom": 1}
        assert state.progress.num_rows == 3
        assert state.notes == []
        segments = list(state.progress.segments.values())
    assert [(each.name, each.num_rows, each.first_row, each.last_row, each.failures) for each in segments] == [
        ("seg-000001.parquet", 2, 1, 3, {}),
        ("seg-000002.parquet", 1, 2, 2, {"oom": 1}),
    ]


def test_results_come_back_in_order_and_the_segments_go_with_the_end(begun: RunState, directory: Path) -> None:
    begun.save(results(*range(9, 4, -1)), SCHEMA)
    begun.save(results(*range(5)), SCHEMA)
    assert [row for batch in begun.results() for row in batch.to_pylist()] == results(*range(10))
    begun.note_publish([FileRecord(5, "ab")], OUTPUT)
    publish = PublishRecord((FileRecord(5, "ab"),), OUTPUT.to_json())
    assert begun.progress.publish == publish
    begun.finish()
    assert names(directory) == ["journal", "lock", "run.json"]
    begun.close()
    with opened(directory) as state:
        assert state.progress.final == FinalRecord(10, {})
        assert state.progress.publish is not None
        assert state.progress.publish.files == publish.files
        assert OutputRecord.from_json(state.progress.publish.record) == OUTPUT
        assert state.progress.num_rows == 10


def test_end_says_how_many_rows_failed(begun: RunState, directory: Path) -> None:
    begun.save(results(1, 2, code="oom"), SCHEMA)
    begun.save(results(0, 3, 4, 5, 6, 7, 8, 9), SCHEMA)
    begun.finish()
    assert begun.progress.final == FinalRecord(10, {"oom": 2})
    assert read_journal(directory / "journal")[-1] == FinalRecord(10, {"oom": 2})


def test_journal_says_when(begun: RunState, directory: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    begun.begin_attempt()
    begun.save(results(1), SCHEMA)
    attempt, segment = read_journal(directory / "journal")[-2:]
    assert isinstance(attempt, AttemptRecord)
    assert isinstance(segment, SegmentRecord)
    for text in (attempt.started, segment.saved):
        assert before <= datetime.fromisoformat(text) <= datetime.now(UTC)


def test_row_is_not_saved_twice(begun: RunState) -> None:
    begun.save(results(1), SCHEMA)
    with pytest.raises(AssertionError, match="row 1 was saved before"):
        begun.save(results(1), SCHEMA)
    # And nothing of it is on the disk.
    assert list(begun.progress.segments) == ["seg-000001.parquet"]
    with pytest.raises(AssertionError, match="row 1 was saved before"):
        begun.save(results(3, 2, 1), SCHEMA)
    assert list(begun.saved) == [1]


def test_segments_that_overlap_are_a_bug(begun: RunState, directory: Path) -> None:
    begun.save(results(1, 2), SCHEMA)
    begun.close()
    (segment,) = (record for record in read_journal(directory / "journal") if isinstance(record, SegmentRecord))
    with Journal(directory / "journal") as journal:
        journal.commit(segment.__class__(**{**_fields(segment), "name": "seg-000002.parquet"}))
    (directory / "seg-000002.parquet").write_bytes((directory / segment.name).read_bytes())
    twice = "row 1 is saved twice, in seg-000002.parquet too: this is a bug in infer"
    with RunState(directory, []) as state, pytest.raises(StateError, match=f"^{twice}$"):
        state.recover()


def _fields(record: SegmentRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__slots__}


def test_what_no_line_stands_for_is_removed(begun: RunState, directory: Path) -> None:
    begun.save(results(1), SCHEMA)
    begun.close()
    for name in ("seg-000002.parquet", "seg-000003.parquet.tmp", "run.json.tmp"):
        (directory / name).write_bytes(b"x")
    with opened(directory):
        assert names(directory) == ["journal", "lock", "run.json", "seg-000001.parquet"]


def test_everything_is_removed_where_no_run_was_begun(directory: Path) -> None:
    directory.mkdir()
    for name in ("journal", "seg-000001.parquet", "run.json.tmp"):
        (directory / name).write_bytes(b"x")
    with opened(directory) as state:
        assert state.run is None
        assert names(directory) == ["lock"]
    assert not directory.exists()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damaged_segment_is_dropped_and_its_rows_run_again(begun: RunState, directory: Path, damage: str) -> None:
    begun.save(results(1, 2), SCHEMA)
    begun.save(results(3), SCHEMA)
    begun.close()
    path = directory / "seg-000001.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[:-1])
    for notes in ([f"a segment of 2 saved rows is damaged, they run again: {path}"], []):
        with opened(directory) as state:
            assert list(state.saved) == [3]
            assert state.notes == notes
            assert not path.exists()
    # A name is never used again.
    with opened(directory) as state:
        state.save(results(1), SCHEMA)
        assert list(state.progress.segments) == ["seg-000002.parquet", "seg-000003.parquet"]


def test_second_holder_is_told_who_the_first_is(begun: RunState, directory: Path) -> None:
    with pytest.raises(LockedError, match=r"^another run is writing this output: process \d+ on .*, since 20"):
        RunState(directory, [])
    begun.close()
    with opened(directory):
        pass


def test_run_that_saved_nothing_and_did_not_die_is_forgotten(begun: RunState, directory: Path) -> None:
    begun.note_stop("SIGTERM")
    begun.close()
    assert not directory.exists()


def test_run_that_died_before_it_saved_anything_is_remembered(begun: RunState, directory: Path) -> None:
    begun.note(EnteredRecord(3))
    begun.close()
    with opened(directory) as state:
        assert state.suspects.num_deaths == 1
        state.begin_attempt()
        state.note(EnteredRecord(3))
    with opened(directory) as state:
        assert state.suspects.alone == {0, 1, 2, 3}


def test_attempt_says_which_process_it_is(begun: RunState, directory: Path) -> None:
    begun.note_stop("x")
    attempt, stop = read_journal(directory / "journal")
    assert isinstance(attempt, AttemptRecord)
    assert (attempt.host, attempt.boot_id, attempt.pid) == (
        begun._holder.host,
        begun._holder.boot_id,
        begun._holder.pid,
    )
    assert stop == StopRecord("x")


def test_discarded_run_leaves_an_empty_state(begun: RunState, directory: Path) -> None:
    begun.save(results(1), SCHEMA)
    begun.discard()
    assert names(directory) == ["lock"]
    assert (begun.run, len(begun.saved), begun.progress.segments) == (None, 0, {})
    begun.begin(run_record(3))
    begun.save(results(1), SCHEMA)
    begun.close()
    with opened(directory) as state:
        assert state.run == run_record(3)
        assert list(state.saved) == [1]


def test_damaged_run_can_be_discarded(begun: RunState, directory: Path) -> None:
    begun.save(results(1), SCHEMA)
    begun.close()
    (directory / "run.json").write_text("{")
    with RunState(directory, []) as state:
        with pytest.raises(StateError):
            state.recover()
        state.discard()
        assert names(directory) == ["lock"]


def test_reopened_run_keeps_the_rows_it_is_given(begun: RunState, directory: Path) -> None:
    begun.save(results(*range(10)), SCHEMA)
    begun.finish()
    kept = [pa.Table.from_pylist(results(*rows, code=code), SCHEMA) for rows, code in [((0, 1), "oom"), ((4,), None)]]
    begun.reopen(iter([*kept, kept[0].slice(0, 0)]))
    assert list(begun.saved) == [0, 1, 4]
    begun.close()
    with opened(directory) as state:
        assert state.progress.final is None
        assert list(state.saved) == [0, 1, 4]
        assert state.progress.failures == {"oom": 2}
        assert list(state.progress.segments) == ["seg-000002.parquet", "seg-000003.parquet"]
        state.save(results(2, 3, 5, 6, 7, 8, 9), SCHEMA)
        assert len(list(state.results())) > 0


def test_segment_that_cannot_be_written_leaves_nothing(
    begun: RunState, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(storage.os, "write", refuse)
        with pytest.raises(StorageError, match="no space left on device"):
            begun.save(results(1), SCHEMA)
    assert names(directory) == ["journal", "lock", "run.json"]
    assert len(begun.saved) == 0
    begun.save(results(1), SCHEMA)
    assert list(begun.saved) == [1]


def test_segment_whose_rename_fails_can_be_saved_again(
    begun: RunState, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(storage.os, "rename", refuse)
        with pytest.raises(StorageError, match="input/output error"):
            begun.save(results(1), SCHEMA)
    assert names(directory) == ["journal", "lock", "run.json"]
    begun.save(results(1), SCHEMA)
    assert list(begun.saved) == [1]


def test_segment_that_cannot_be_renamed_or_removed_says_why_it_could_not_be_saved(
    begun: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(storage.os, "rename", refuse)
        patched.setattr(storage.os, "unlink", refuse)
        with pytest.raises(StorageError, match=r"^cannot write .*/seg-000001\.parquet: input/output error"):
            begun.save(results(1), SCHEMA)
    assert len(begun.saved) == 0


@pytest.mark.parametrize("call", ["unlink", "listdir"])
def test_lock_is_given_back_also_where_nothing_can_be_cleared_up(
    begun: RunState, directory: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    begun.note_stop()
    with monkeypatch.context() as patched:
        patched.setattr(storage.os, call, refuse)
        begun.close()
    with opened(directory):
        pass
    assert not directory.exists()


def test_stop_that_cannot_be_noted_raises_nothing(begun: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(storage.os, "write", refuse)
        begun.note_stop()


@pytest.mark.parametrize("error", [StorageError("cannot read it"), KeyboardInterrupt()])
def test_nothing_is_forgotten_by_a_run_that_ends_while_it_looks_at_what_is_saved(
    begun: RunState, directory: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    begun.save(results(1, 2), SCHEMA)
    begun.note_stop("SIGTERM")
    begun.close()

    def fail(*_: object) -> bool:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(run_state, "is_intact", fail)
        with RunState(directory, []) as state, pytest.raises(type(error)):
            state.recover()
    with opened(directory) as state:
        assert list(state.saved) == [1, 2]


def test_run_that_ended_is_not_forgotten(begun: RunState, directory: Path) -> None:
    begun.finish()
    begun.close()
    assert names(directory) == ["journal", "lock", "run.json"]


def test_run_that_is_about_to_publish_is_not_forgotten(begun: RunState, directory: Path) -> None:
    begun.note_publish([], OUTPUT)
    begun.note_stop()
    assert read_journal(directory / "journal")[-1] == StopRecord("at once")
    begun.close()
    assert names(directory) == ["journal", "lock", "run.json"]


def test_state_that_was_closed_leaves_alone_what_came_after_it(begun: RunState, directory: Path) -> None:
    begun.note_stop()
    begun.close()
    with opened(directory) as state:
        begun.close()
        assert names(directory) == ["lock"]
        state.begin(run_record(5))
        begun.close()
        assert names(directory) == ["journal", "lock", "run.json"]
        state.begin_attempt()
        state.save(results(1), SCHEMA)


def test_state_without_a_run_takes_nothing(directory: Path) -> None:
    with opened(directory) as state:
        assert state.saved.num_rows == 0
        state.note_stop()
        with pytest.raises(AssertionError, match=f"no run in {directory}"):
            state.note(StopRecord("x"))
        assert names(directory) == ["lock"]


def test_state_that_cannot_be_locked_leaves_what_is_there(begun: RunState, directory: Path) -> None:
    before = names(directory)
    with pytest.raises(LockedError):
        RunState(directory, [])
    assert names(directory) == before


def test_run_whose_journal_is_gone_is_refused_and_keeps_its_segments(begun: RunState, directory: Path) -> None:
    begun.save(results(1), SCHEMA)
    begun.close()
    (directory / "journal").unlink()
    with (
        RunState(directory, []) as state,
        pytest.raises(StateError, match=f"^there is no journal: {directory}/journal$") as caught,
    ):
        state.recover()
    assert "--restart" in caught.value.hint
    assert "seg-000001.parquet" in names(directory)


@pytest.mark.parametrize("name", ["part-00000.parquet", "_SUCCESS", "lock.txt", "seg-1.parquet", "sub"])
def test_directory_of_something_else_is_refused_and_left_alone(directory: Path, name: str) -> None:
    directory.mkdir()
    (directory / "lock").write_text("mine")
    if name == "sub":
        (directory / name).mkdir()
    else:
        (directory / name).write_text("mine")
    with pytest.raises(OutputExistsError, match=name):
        RunState(directory, ["infer", "run"])
    assert names(directory) == sorted(["lock", name])
    assert (directory / "lock").read_text() == "mine"


def test_hidden_files_in_a_state_directory_are_left_alone(directory: Path) -> None:
    directory.mkdir()
    (directory / ".nfs0001").write_text("")
    with opened(directory) as state:
        state.begin(run_record())
        state.discard()
    assert ".nfs0001" in names(directory)


def test_segments_that_a_journal_has_lost_are_not_thrown_away(begun: RunState, directory: Path) -> None:
    for row in range(3):
        begun.save(results(row), SCHEMA)
    begun.close()
    (directory / "journal").write_bytes(b"")
    with RunState(directory, []) as state:
        with pytest.raises(StateError, match=f"^the journal does not know 3 segments of saved rows: {directory}$"):
            state.recover()
        state.close()
    assert len([name for name in names(directory) if name.startswith("seg-")]) == 3
