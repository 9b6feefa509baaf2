"""How far a run is, read from what is saved of it: without its lock, and also while it goes on.

Nothing is written and nothing is locked. The run may move on between two looks, or end and take its segments away; then
it is looked at again.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from infer.io.errors import StateError
from infer.io.journal import AttemptRecord, FinalRecord, SegmentRecord, StopRecord, read_journal
from infer.io.lock import boot_id, read_holder
from infer.io.row_set import RowSet
from infer.io.run_record import read_run
from infer.io.run_state import JOURNAL, LOCK, RUN
from infer.io.saved_run import SavedRun
from infer.io.segment import ROW, read_segment
from infer.io.suspects import Suspects, find_suspects

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from infer.io.journal import JournalRecord
    from infer.io.lock import Holder
    from infer.io.run_record import RunRecord

_MAX_LOOKS = 4
_MAX_SEGMENTS = 8
"""Over which the rate is taken."""


class RunPhase(StrEnum):
    """What a run is doing, or how its last attempt came to its end."""

    EMPTY = "empty"
    """Nothing is saved yet, and no process is at it."""
    RUNNING = "running"
    UNKNOWN = "unknown"
    """A process of another machine is, or was, at it."""
    STOPPED = "stopped"
    """It was told to, or met an error that was no row's fault."""
    DIED = "died"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What is known of a run."""

    phase: RunPhase
    run: RunRecord | None
    """None before the first model was loaded."""
    progress: SavedRun
    holder: Holder | None
    """The process that is, or was, at it."""
    stop_reason: str | None
    """Of a run that is stopped: a signal, `max-runtime`, `at once`, `errors` or `error`."""
    num_attempts: int
    num_deaths: int
    last_saved: datetime | None
    rows_per_second: float | None
    """Between the last saves of the last attempt; None where there were not enough of them."""
    suspects: Suspects

    @property
    def num_rows(self) -> int | None:
        return None if self.run is None else self.run.num_rows

    @property
    def seconds_left(self) -> float | None:
        """Until all rows are saved, at the rate of the last ones; None where it does not run."""
        if self.phase is not RunPhase.RUNNING or self.run is None or not self.rows_per_second:
            return None
        return (self.run.num_rows - self.progress.num_rows) / self.rows_per_second


def read_status(directory: Path, now: datetime | None = None) -> RunStatus:
    """Look at a state directory. `now` is given by those who need the same answer twice.

    Raises:
        StateError: it is damaged.
        StorageError: it cannot be read.
    """
    for _ in range(_MAX_LOOKS):
        run = read_run(directory / RUN)
        records = [] if run is None else read_journal(directory / JOURNAL)
        holder = read_holder(directory / LOCK)
        status, is_complete = _status(directory, run, records, holder, now or datetime.now(UTC))
        if is_complete and read_run(directory / RUN) == run:
            break
    return status


def _status(
    directory: Path, run: RunRecord | None, records: Sequence[JournalRecord], holder: Holder | None, now: datetime
) -> tuple[RunStatus, bool]:
    """What these come to, and False where a segment of theirs could not be read."""
    progress = SavedRun.of(records)
    starts = [position for position, record in enumerate(records) if isinstance(record, AttemptRecord)]
    attempts = [
        records[start:end] for start, end in zip(starts, [*starts[1:], len(records)], strict=bool(starts)) if starts
    ]
    phase = _phase(progress, attempts, holder)
    is_open = phase in (RunPhase.RUNNING, RunPhase.UNKNOWN) and bool(attempts) and _end(attempts[-1]) is None
    ended = attempts[:-1] if is_open else attempts
    num_deaths = sum(_end(attempt) is None for attempt in ended)
    suspects, is_complete = Suspects(0, frozenset(), frozenset()), True
    if num_deaths and run is not None and progress.final is None:
        saved, is_complete = _saved_rows(directory, run, progress)
        past = records[: starts[-1]] if is_open else records
        suspects = find_suspects(past, saved, socket.gethostname(), boot_id())
    segments = [record for record in records if isinstance(record, SegmentRecord)]
    end = _end(attempts[-1]) if attempts else None
    status = RunStatus(
        phase=phase,
        run=run,
        progress=progress,
        holder=holder,
        stop_reason=end.reason if phase is RunPhase.STOPPED and isinstance(end, StopRecord) else None,
        num_attempts=len(attempts),
        num_deaths=num_deaths,
        last_saved=datetime.fromisoformat(segments[-1].saved) if segments else None,
        rows_per_second=_rate(attempts[-1], now if is_open else None) if attempts else None,
        suspects=suspects,
    )
    return status, is_complete


def _phase(progress: SavedRun, attempts: Sequence[Sequence[JournalRecord]], holder: Holder | None) -> RunPhase:
    last = attempts[-1][0] if attempts else None
    assert last is None or isinstance(last, AttemptRecord), last
    end = None if last is None else _end(attempts[-1])
    is_last = (
        holder is not None
        and last is not None
        and (holder.pid, holder.host, holder.boot_id) == (last.pid, last.host, last.boot_id)
    )
    # The lock names the last to hold it, also when it has been given back. Who has ended its attempt is done with it.
    if holder is not None and not (is_last and (end is not None or progress.final is not None)):
        if holder.is_alive:
            return RunPhase.RUNNING
        if holder.host != socket.gethostname() and progress.final is None:
            return RunPhase.UNKNOWN
    if progress.final is not None:
        return RunPhase.DONE
    if isinstance(end, StopRecord):
        return RunPhase.STOPPED
    return RunPhase.DIED if attempts or progress.num_rows else RunPhase.EMPTY


def _end(attempt: Sequence[JournalRecord]) -> StopRecord | FinalRecord | None:
    """How an attempt has ended, where it said so."""
    return next((record for record in reversed(attempt) if isinstance(record, StopRecord | FinalRecord)), None)


def _rate(attempt: Sequence[JournalRecord], now: datetime | None) -> float | None:
    """Of the last saves. Where the next has to come and is late at `now`, the rows have become slower."""
    begin = attempt[0]
    assert isinstance(begin, AttemptRecord), begin
    segments = [record for record in attempt if isinstance(record, SegmentRecord)]
    recent = segments[-_MAX_SEGMENTS:]
    if not recent:
        return None
    times = [begin.started, *(segment.saved for segment in segments)][-len(recent) - 1 :]
    moments = [datetime.fromisoformat(time) for time in times]
    longest = max((later - earlier).total_seconds() for earlier, later in pairwise(moments))
    late = 0.0 if now is None else max(0.0, (now - moments[-1]).total_seconds() - longest)
    seconds = (moments[-1] - moments[0]).total_seconds() + late
    # Times are whole seconds: of a short while they tell nothing.
    return sum(segment.num_rows for segment in recent) / seconds if seconds >= 2 else None


def _saved_rows(directory: Path, run: RunRecord, progress: SavedRun) -> tuple[RowSet, bool]:
    """The rows that are saved, and whether all of their segments could be read."""
    saved, is_complete = RowSet(run.num_rows), True
    for name in progress.segments:
        try:
            rows = read_segment(directory / name, [ROW])[ROW].to_pylist()
        except StateError:
            is_complete = False
            continue
        for row in rows:
            saved.add(row)
    return saved, is_complete
