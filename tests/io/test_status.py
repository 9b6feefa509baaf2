"""What is told of a run from what it has saved: each way an attempt can go on or end."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest

from infer.io.errors import StateError
from infer.io.fingerprint import Fingerprint
from infer.io.journal import (
    AloneRecord,
    AttemptRecord,
    EnteredRecord,
    FileRecord,
    FinalRecord,
    Journal,
    PublishRecord,
    ReopenRecord,
    StopRecord,
    encode_record,
)
from infer.io.lock import Holder
from infer.io.run_record import RunRecord, write_run
from infer.io.run_state import JOURNAL, LOCK, RUN, RunState
from infer.io.status import RunPhase, read_status

if TYPE_CHECKING:
    from pathlib import Path

    from infer.io.journal import JournalRecord

NUM_ROWS = 100
NOW = datetime.fromisoformat("2026-01-01T00:00:30+00:00")
SCHEMA = pa.schema([("error_code", pa.string()), ("_row", pa.int64())])


class Saved:
    """A state directory, whose processes are made up."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._me = Holder.this_process([])
        directory.mkdir()
        run = RunRecord("1d", "2026-01-01T00:00:00+00:00", NUM_ROWS, 7, Fingerprint({}, {}), {}, "/out.jsonl")
        Journal(directory / JOURNAL).close()
        write_run(directory / RUN, run)
        self.hold(pid=1, start=0.0)

    def hold(self, **changes: Any) -> Holder:
        """The lock names this process, but for `changes`."""
        holder = replace(self._me, **changes)
        values = {name: getattr(holder, name) for name in ("pid", "host", "boot_id", "start", "argv")}
        (self.directory / LOCK).write_bytes(orjson.dumps(values))
        return holder

    def attempt(self, **changes: Any) -> AttemptRecord:
        holder = self.hold(**changes)
        record = AttemptRecord("2026-01-01T00:00:00+00:00", holder.host, holder.boot_id, holder.pid)
        self.add(record)
        return record

    def add(self, *records: JournalRecord) -> None:
        with (self.directory / JOURNAL).open("ab") as file:
            file.write(b"".join(map(encode_record, records)))

    def save(self, *rows: int, code: str | None = None, saved: str = "2026-01-01T00:00:10+00:00") -> None:
        lock = (self.directory / LOCK).read_bytes()
        with RunState(self.directory, []) as state:
            state.recover()
            state.save([{"_row": row, "error_code": code} for row in rows], SCHEMA)
            segment = list(state.progress.segments.values())[-1]
        (self.directory / LOCK).write_bytes(lock)
        lines = (self.directory / JOURNAL).read_bytes().splitlines(keepends=True)
        (self.directory / JOURNAL).write_bytes(b"".join(lines[:-1]) + encode_record(replace(segment, saved=saved)))


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "out.jsonl.infer")


GONE = {"pid": 1, "start": 0.0}


def test_run_that_saved_nothing_is_empty(saved: Saved) -> None:
    status = read_status(saved.directory)
    assert (status.phase, status.num_rows, status.progress.num_rows) == (RunPhase.EMPTY, NUM_ROWS, 0)
    assert (status.last_saved, status.rows_per_second, status.seconds_left) == (None, None, None)


def test_directory_with_nothing_but_a_lock_is_empty_or_running(saved: Saved) -> None:
    (saved.directory / RUN).unlink()
    (saved.directory / JOURNAL).unlink()
    status = read_status(saved.directory)
    assert (status.phase, status.run) == (RunPhase.EMPTY, None)
    saved.hold()
    assert read_status(saved.directory).phase is RunPhase.RUNNING


def test_run_goes_on_while_its_process_lives(saved: Saved) -> None:
    saved.attempt()
    saved.save(0, 1, 2, saved="2026-01-01T00:00:10+00:00")
    saved.save(3, code="oom", saved="2026-01-01T00:00:20+00:00")
    status = read_status(saved.directory, NOW)
    assert status.phase is RunPhase.RUNNING
    assert status.holder is not None
    assert status.holder.pid == os.getpid()
    assert (status.progress.num_rows, status.progress.failures) == (4, {"oom": 1})
    assert (status.num_attempts, status.num_deaths) == (1, 0)
    assert status.last_saved is not None
    assert status.last_saved.isoformat() == "2026-01-01T00:00:20+00:00"
    # 4 rows in 20 seconds, 96 to go.
    assert status.rows_per_second == pytest.approx(0.2)
    assert status.seconds_left == pytest.approx(480)
    # The next save is 20 seconds late.
    assert read_status(saved.directory, NOW + timedelta(seconds=20)).rows_per_second == pytest.approx(0.1)


def test_process_that_has_ended_without_a_word_died(saved: Saved) -> None:
    saved.attempt(**GONE)
    saved.save(0)
    status = read_status(saved.directory)
    assert (status.phase, status.num_attempts, status.num_deaths) == (RunPhase.DIED, 1, 1)
    assert status.seconds_left is None


def test_number_of_the_process_given_to_another_is_no_life(saved: Saved) -> None:
    saved.attempt(start=1.0)
    assert read_status(saved.directory).phase is RunPhase.DIED


def test_machine_that_was_started_anew_has_no_such_process(saved: Saved) -> None:
    saved.attempt(boot_id="another")
    assert read_status(saved.directory).phase is RunPhase.DIED


def test_process_of_another_machine_may_be_alive(saved: Saved) -> None:
    saved.attempt(host="elsewhere")
    assert read_status(saved.directory).phase is RunPhase.UNKNOWN
    saved.add(StopRecord("SIGTERM"))
    assert read_status(saved.directory).phase is RunPhase.STOPPED


@pytest.mark.parametrize("reason", ["SIGTERM", "max-runtime", "errors", "error", "at once"])
def test_run_that_was_stopped_says_why(saved: Saved, reason: str) -> None:
    # Also where the process lives on, as one does that runs several jobs.
    saved.attempt()
    saved.add(StopRecord(reason))
    status = read_status(saved.directory)
    assert (status.phase, status.stop_reason, status.num_deaths) == (RunPhase.STOPPED, reason, 0)


def test_run_that_is_taken_up_again_is_running_before_its_attempt_begins(saved: Saved) -> None:
    saved.attempt(**GONE)
    saved.add(StopRecord("SIGTERM"))
    saved.hold()
    status = read_status(saved.directory)
    assert (status.phase, status.stop_reason) == (RunPhase.RUNNING, None)


def test_run_is_done_when_its_output_is_there(saved: Saved) -> None:
    saved.attempt()
    saved.save(*range(NUM_ROWS), code="timeout")
    saved.add(PublishRecord((FileRecord(1, "ab"),), {}), FinalRecord(NUM_ROWS, {"timeout": NUM_ROWS}))
    status = read_status(saved.directory)
    assert (status.phase, status.progress.num_rows, status.num_deaths) == (RunPhase.DONE, NUM_ROWS, 0)
    assert status.progress.failures == {"timeout": NUM_ROWS}
    saved.add(StopRecord("at once"))
    assert read_status(saved.directory).phase is RunPhase.DONE


def test_run_whose_failed_rows_run_again_is_not_done(saved: Saved) -> None:
    saved.attempt(**GONE)
    saved.add(PublishRecord((), {}), FinalRecord(NUM_ROWS), ReopenRecord(()))
    status = read_status(saved.directory)
    assert (status.phase, status.progress.num_rows) == (RunPhase.DIED, 0)
    saved.attempt()
    assert read_status(saved.directory).phase is RunPhase.RUNNING


def test_suspects_are_told_of_the_attempts_that_died(saved: Saved) -> None:
    for _ in range(2):
        saved.attempt(**GONE)
        saved.add(EnteredRecord(3))
    saved.save(1)
    status = read_status(saved.directory)
    assert (status.num_deaths, status.suspects.alone) == (2, {0, 2, 3})
    for _ in range(2):
        saved.attempt(**GONE)
        saved.add(AloneRecord(2))
    assert read_status(saved.directory).suspects.poison == {2}


def test_attempt_that_goes_on_makes_no_suspects(saved: Saved) -> None:
    saved.attempt(**GONE)
    saved.add(EnteredRecord(3))
    saved.attempt()
    saved.add(EnteredRecord(3))
    status = read_status(saved.directory)
    assert (status.phase, status.num_attempts, status.num_deaths) == (RunPhase.RUNNING, 2, 1)
    assert status.suspects.alone == frozenset()
    saved.hold(**GONE)
    assert read_status(saved.directory).suspects.alone == {0, 1, 2, 3}


def test_segment_that_is_gone_is_looked_over(saved: Saved) -> None:
    for _ in range(2):
        saved.attempt(**GONE)
        saved.add(EnteredRecord(1))
    saved.save(0)
    (segment,) = saved.directory.glob("seg-*")
    segment.unlink()
    assert read_status(saved.directory).suspects.alone == {0, 1}


def test_line_that_is_being_written_is_not_there_yet(saved: Saved) -> None:
    saved.attempt()
    with (saved.directory / JOURNAL).open("ab") as file:
        file.write(encode_record(StopRecord("SIGTERM"))[:-4])
    assert read_status(saved.directory).phase is RunPhase.RUNNING


@pytest.mark.parametrize("name", [RUN, JOURNAL])
def test_damaged_state_is_refused(saved: Saved, name: str) -> None:
    saved.attempt()
    saved.add(StopRecord("SIGTERM"))
    data = (saved.directory / name).read_bytes()
    (saved.directory / name).write_bytes(data[:12] + bytes([data[12] ^ 4]) + data[13:])
    with pytest.raises(StateError, match="damaged"):
        read_status(saved.directory)


def test_looking_changes_nothing_and_takes_no_lock(saved: Saved) -> None:
    def content() -> dict[str, object]:
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in saved.directory.iterdir()}

    saved.save(0)
    with RunState(saved.directory, []) as state:
        state.recover()
        before = content()
        assert read_status(saved.directory).phase is RunPhase.RUNNING
        assert content() == before
