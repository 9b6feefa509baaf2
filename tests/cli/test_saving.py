"""Rows are saved by number, by size or after a time, and what is about to happen is noted before it does."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from infer.cli import saving
from infer.cli.errors import StandardOutputError
from infer.cli.saving import RowSaver, StreamSaver
from infer.io import storage
from infer.io.errors import StorageError
from infer.io.fingerprint import Fingerprint
from infer.io.journal import AloneRecord, EnteredRecord, SegmentRecord
from infer.io.row import Row
from infer.io.run_record import RunRecord
from infer.io.run_state import RunState
from infer.io.schema import OutputSchema
from infer.io.stream_output import StreamOutput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema(
    [("response", pa.string()), ("completion_tokens", pa.int64()), ("error_code", pa.string()), ("_row", pa.int64())]
)
NUM_ROWS = 10_000
SECONDS = 30.0


class Clock:
    """A clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def rows(*indices: int, num_tokens: int | None = 1) -> list[tuple[Row, dict[str, object]]]:
    return [
        (Row(index, None), {"response": "x", "completion_tokens": num_tokens, "error_code": None, "_row": index})
        for index in indices
    ]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RunState]:
    with RunState(tmp_path / "out.infer", []) as state:
        state.recover()
        state.begin(RunRecord("1f2e", "", NUM_ROWS, 0, Fingerprint({}, {}), {}, ""))
        state.begin_attempt()
        yield state


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def commits() -> list[str]:
    """When a commit began and ended."""
    return []


@pytest.fixture
def saver(state: RunState, clock: Clock, commits: list[str]) -> RowSaver:
    @contextmanager
    def committing() -> Iterator[None]:
        commits.append(f"begin {len(state.saved)}")
        yield
        commits.append(f"end {len(state.saved)}")

    return RowSaver(state, SCHEMA, SECONDS, committing, clock)


def records(state: RunState, kind: type) -> list[object]:
    assert state._journal is not None
    return [record for record in state._journal.records if isinstance(record, kind)]


def test_rows_are_saved_when_there_are_so_many(saver: RowSaver) -> None:
    saver.add(rows(*range(1000)))
    saver.add(rows(*range(1000, 1023)))
    assert saver.num_saved == 0
    saver.add(rows(1023))
    assert saver.num_saved == 1024
    # And from there on again.
    saver.add(rows(*range(1024, 2047)))
    assert saver.num_saved == 1024
    saver.add(rows(*range(2047, 3000)))
    assert saver.num_saved == 3000


def test_rows_are_saved_when_they_are_so_long(saver: RowSaver) -> None:
    saver.add(rows(0, num_tokens=(1 << 18) - 1))
    # A row that failed has no tokens.
    saver.add(rows(1, num_tokens=None))
    assert saver.num_saved == 0
    saver.add(rows(2))
    assert saver.num_saved == 3
    saver.add(rows(3, num_tokens=(1 << 18) - 1))
    assert saver.num_saved == 3


def test_rows_are_saved_when_the_oldest_has_waited_so_long(saver: RowSaver, clock: Clock) -> None:
    saver.save_if_due()
    saver.add(rows(0))
    clock.now += SECONDS - 1
    saver.add(rows(1))
    saver.save_if_due()
    assert saver.num_saved == 0
    clock.now += 1
    saver.save_if_due()
    assert saver.num_saved == 2
    # The time before the first of the next ones does not count.
    clock.now += SECONDS
    saver.add(rows(2))
    saver.save_if_due()
    assert saver.num_saved == 2
    clock.now += SECONDS
    saver.save_if_due()
    assert saver.num_saved == 3


def test_rows_are_saved_on_demand_and_nothing_is_where_there_are_none(
    state: RunState, saver: RowSaver, commits: list[str]
) -> None:
    saver.save()
    assert commits == []
    saver.add(rows(7, 3))
    saver.save()
    saver.save()
    assert list(state.saved) == [3, 7]
    assert len(records(state, SegmentRecord)) == 1
    assert commits == ["begin 0", "end 2"]


def test_rows_are_saved_in_one_segment_of_their_schema(state: RunState, saver: RowSaver) -> None:
    saver.add(rows(2, 0))
    saver.save()
    (segment,) = records(state, SegmentRecord)
    assert isinstance(segment, SegmentRecord)
    assert (segment.num_rows, segment.first_row, segment.last_row) == (2, 0, 2)


def test_rows_that_could_not_be_saved_are_held(
    state: RunState, saver: RowSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    saver.add(rows(0, 1))
    for call in ("write", "rename"):
        with monkeypatch.context() as patched:
            patched.setattr(storage.os, call, refuse)
            with pytest.raises(StorageError, match="no space left"):
                saver.save()
        assert saver.num_saved == 0
    saver.add(rows(2))
    saver.save()
    assert list(state.saved) == [0, 1, 2]


def test_rows_are_noted_before_they_enter_some_at_a_time(state: RunState, saver: RowSaver) -> None:
    for last_row in range(0, 3_000, 10):
        saver.begin(last_row)
        entered = records(state, EnteredRecord)
        assert isinstance(entered[-1], EnteredRecord)
        assert entered[-1].last_row >= last_row
    # Not a line a call: 300 of them.
    assert [each.last_row for each in entered if isinstance(each, EnteredRecord)] == [
        256,
        516,
        776,
        1036,
        1296,
        1556,
        1816,
        2076,
        2336,
        2596,
        2856,
        3116,
    ]


def test_row_that_runs_alone_is_noted_when_the_others_are_saved(state: RunState, saver: RowSaver) -> None:
    saver.add(rows(1))
    saver.begin_alone(5)
    saver.begin_alone(6)
    assert state._journal is not None
    assert [type(each) for each in state._journal.records[1:]] == [SegmentRecord, AloneRecord, AloneRecord]
    assert records(state, AloneRecord) == [AloneRecord(5), AloneRecord(6)]
    assert list(state.saved) == [1]


def test_no_line_of_the_journal_is_left_in_the_middle(saver: RowSaver, commits: list[str]) -> None:
    saver.begin(3)
    assert commits == ["begin 0", "end 0"]
    saver.begin_alone(5)
    assert commits == ["begin 0", "end 0"] * 2


def test_stream_gets_rows_at_once_and_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    saver = StreamSaver(StreamOutput(stream, OutputSchema(pa.schema([]), SCHEMA)))
    saver.begin(5)
    saver.begin_alone(5)
    saver.add(rows(0))
    written = stream.getvalue()
    assert written.count(b"\n") == 1
    saver.save_if_due()
    saver.save()
    assert (stream.getvalue(), saver.num_saved) == (written, None)
    monkeypatch.setattr(saving, "reader_has_gone", lambda: True)
    with pytest.raises(StandardOutputError, match=r"^nobody reads standard output any more$"):
        saver.add(rows(1))
