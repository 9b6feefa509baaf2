"""Where records go as rows are done, in any order."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Protocol

from infer.cli.errors import StandardOutputError
from infer.cli.stdout import reader_has_gone
from infer.io.journal import AloneRecord, EnteredRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from infer.cli.result import Record
    from infer.io.journal import JournalRecord
    from infer.io.row import Row
    from infer.io.run_state import RunState
    from infer.io.stream_output import StreamOutput

MAX_ROWS = 1024
_MAX_TOKENS = 1 << 18
"""Of the answers that are held: they stand for bytes."""

_ENTERED_AT_ONCE = 256


class Saver(Protocol):
    """What the loop over the rows tells of them."""

    @property
    def num_saved(self) -> int | None:
        """Rows that no crash can take; None where nothing is saved."""

    def begin(self, last_row: int) -> None:
        """Rows up to `last_row` are about to be rendered, tokenised and given to the engine."""

    def begin_alone(self, row: int) -> None:
        """From here on nothing is under way but `row`."""

    def add(self, rows: list[tuple[Row, Record]]) -> None:
        """Take rows that are done."""

    def save_if_due(self) -> None:
        """Call now and then: what is held waits no longer than it should."""

    def save(self) -> None:
        """Save all that is held."""


class RowSaver:
    """Saves some rows at a time: so many, or after so long.

    `committing` brackets what nothing may interrupt.
    """

    def __init__(
        self,
        state: RunState,
        schema: pa.Schema,
        max_seconds: float,
        committing: Callable[[], AbstractContextManager[None]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._state = state
        self._schema = schema
        self._max_seconds = max_seconds
        self._committing = committing
        self._clock = clock
        self._records: list[Record] = []
        self._num_tokens = 0
        self._oldest = 0.0
        self._entered = -1

    @property
    def num_saved(self) -> int | None:
        return len(self._state.saved)

    def begin(self, last_row: int) -> None:
        if last_row > self._entered:
            # For some more at once: a line for each would be many.
            self._entered = last_row + _ENTERED_AT_ONCE
            self._note(EnteredRecord(self._entered))

    def begin_alone(self, row: int) -> None:
        self.save()
        self._note(AloneRecord(row))

    def add(self, rows: list[tuple[Row, Record]]) -> None:
        if not self._records:
            self._oldest = self._clock()
        for _, record in rows:
            self._records.append(record)
            self._num_tokens += int(record["completion_tokens"] or 0)  # type: ignore[call-overload]
        if len(self._records) >= MAX_ROWS or self._num_tokens >= _MAX_TOKENS:
            self.save()

    def save_if_due(self) -> None:
        if self._clock() - self._oldest >= self._max_seconds:
            self.save()

    def save(self) -> None:
        if self._records:
            with self._committing():
                self._state.save(self._records, self._schema)
                self._records = []
                self._num_tokens = 0

    def _note(self, record: JournalRecord) -> None:
        # A journal that was left in the middle of a line takes no other: what is held could not be saved any more.
        with self._committing():
            self._state.note(record)


class StreamSaver:
    """Hands rows on to a stream, where they are out of our hands."""

    num_saved = None

    def __init__(self, stream: StreamOutput) -> None:
        self._stream = stream

    def begin(self, last_row: int) -> None:
        pass

    def begin_alone(self, row: int) -> None:
        pass

    def add(self, rows: list[tuple[Row, Record]]) -> None:
        self._stream.add(rows)
        if reader_has_gone():
            raise StandardOutputError("nobody reads standard output any more")

    def save_if_due(self) -> None:
        pass

    def save(self) -> None:
        pass
