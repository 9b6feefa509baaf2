"""What is saved of a run, in a directory beside its output: the protocol that loses no row.

    lock            whose turn it is
    run.json        what is run: written once
    journal         what has happened, in order
    seg-000001...   results of rows, written once each

A segment counts when its line is in the journal, and the line is written when the segment has reached the disk. What is
in the directory and in no line was left by a crash, and is removed. What is written once appears by a rename.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from infer.io import storage
from infer.io.errors import OutputExistsError, StateError, StorageError
from infer.io.journal import (
    SEGMENT_NAME,
    AttemptRecord,
    DropRecord,
    FinalRecord,
    Journal,
    PublishRecord,
    ReopenRecord,
    SegmentRecord,
    StopRecord,
    segment_number,
)
from infer.io.lock import Holder, RunLock
from infer.io.merge import merge_segments
from infer.io.row_set import RowSet
from infer.io.run_record import RESTART, now, read_run, write_run
from infer.io.saved_run import SavedRun
from infer.io.segment import ROW, is_intact, read_segment, result_table, write_segment
from infer.io.suspects import find_suspects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from infer.io.journal import FileRecord, JournalRecord
    from infer.io.output_record import OutputRecord
    from infer.io.run_record import RunRecord
    from infer.io.suspects import Suspects

LOCK, RUN, JOURNAL = "lock", "run.json", "journal"
_OURS = re.compile(r"lock|journal|(run\.json|seg-\d{6,}\.parquet)(\.tmp)?")
"""Names that this module gives: nothing else is ever removed."""


class RunState:
    """The owner of a state directory, made where there is none: first `recover`, or `discard` and `begin`.

    To be closed; what it holds is safe at any instant.

    Raises:
        OutputExistsError: the directory is no run's, but somebody's data.
        LockedError: another process is at it.
        StorageError: the file system refused.
    """

    def __init__(self, directory: Path, argv: Sequence[str]) -> None:
        self.directory = directory
        self.run: RunRecord | None = None
        self.notes: list[str] = []
        """What a person should be told of what was found."""
        self._journal: Journal | None = None
        self._is_known = False
        """Whether all that is saved has been looked at."""
        self._holder = Holder.this_process(argv)
        self._clear()
        _check_is_ours(directory)
        self._lock = RunLock(directory / LOCK, self._holder)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back. What is of no use to a later run goes with it: a run of which nothing is saved, and that
        did not die."""
        if self._is_closed:
            # What lies there is another's by now.
            return
        self._is_closed = True
        with suppress(StorageError):
            if self._journal is not None and self._is_known and self._is_forgettable():
                self.discard()
        if self._journal is not None:
            self._journal.close()
        with suppress(StorageError):
            if storage.list_names(self.directory) == [LOCK]:
                storage.remove_directory(self.directory)
        self._lock.release()

    @property
    def suspects(self) -> Suspects:
        """Rows that were there when earlier attempts died."""
        return find_suspects(self._begun.records, self.saved, self._holder.host, self._holder.boot_id)

    def recover(self) -> None:
        """Take up the run that is there, if there is one.

        Raises:
            StateError: what is saved is damaged where no crash can have damaged it.
            StorageError: the file system refused.
        """
        self.run = read_run(self.directory / RUN)
        if self.run is None:
            self._remove_others()
        else:
            # Without it, all that is saved would look like what a crash has left.
            if JOURNAL not in storage.list_names(self.directory):
                raise StateError(f"there is no journal: {self.directory / JOURNAL}", RESTART)
            self._journal = Journal(self.directory / JOURNAL)
            self._load_progress()

    def begin(self, run: RunRecord) -> None:
        """Start a run in an empty directory."""
        assert self.run is None, self.run
        self._remove_others()
        # The journal first: where run.json is, there is a journal.
        self._journal = Journal(self.directory / JOURNAL)
        write_run(self.directory / RUN, run)
        self.run = run
        self._clear()
        self._is_known = True

    def begin_attempt(self) -> None:
        """From here on the process's end without a word is a death."""
        holder = self._holder
        self.note(AttemptRecord(now(), holder.host, holder.boot_id, holder.pid))

    def note(self, record: JournalRecord) -> None:
        """Append what is of use only after a death."""
        self._begun.note(record)

    def note_stop(self, reason: str = "at once") -> None:
        """The process is about to end because it was told to, which is no row's fault. From any thread."""
        if self._journal is not None:
            with suppress(StorageError):
                self._journal.note(StopRecord(reason))

    def save(self, records: Sequence[Mapping[str, object]], schema: pa.Schema) -> None:
        """Rows with their results. They are saved when this returns."""
        table = result_table(records, schema)
        rows = table[ROW].to_pylist()
        for row in rows:
            assert row not in self.saved, f"row {row} was saved before"
        segment = self._write(table)
        self._begun.commit(segment)
        self.progress.add(segment)
        for row in rows:
            self.saved.add(row)

    def results(self) -> Iterator[pa.RecordBatch]:
        """The results of all rows, in order.

        Raises:
            StateError: one is missing.
        """
        assert self.run is not None
        segments = list(self.progress.segments.values())
        return merge_segments(segments, lambda segment: read_segment(self.directory / segment.name), self.run.num_rows)

    def note_publish(self, files: Sequence[FileRecord], output: OutputRecord) -> None:
        """Files of this content are about to take the output's name."""
        record = PublishRecord(tuple(files), output.to_json())
        self._begun.commit(record)
        self.progress.add(record)

    def finish(self) -> None:
        """The output is there: the segments go."""
        assert self.run is not None
        names = list(self.progress.segments)
        record = FinalRecord(self.run.num_rows, self.progress.failures)
        self._begun.commit(record)
        self.progress.add(record)
        for name in names:
            storage.remove(self.directory / name)

    def reopen(self, tables: Iterator[pa.Table]) -> None:
        """After the end, keep the rows of `tables` only; the others are to be run again."""
        assert self.progress.final is not None
        segments = []
        for table in tables:
            if table.num_rows:
                segments.append(self._write(table))
                self.progress.num_segments_ever += 1
        record = ReopenRecord(tuple(segments))
        self._begun.commit(record)
        self._load_progress()

    def discard(self) -> None:
        """Forget the run, with all that is saved of it."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        # Without it the rest is nothing.
        storage.remove(self.directory / RUN)
        storage.sync_directory(self.directory)
        self.run = None
        self._clear()
        self._remove_others()

    @property
    def _begun(self) -> Journal:
        """The journal of the run that was begun or recovered."""
        assert self._journal is not None, f"no run in {self.directory}"
        return self._journal

    def _is_forgettable(self) -> bool:
        """By the journal: `progress` and `saved` may be half loaded when something goes wrong."""
        lasting = (SegmentRecord, PublishRecord, FinalRecord, ReopenRecord)
        is_nothing_saved = not any(isinstance(record, lasting) for record in self._begun.records)
        return is_nothing_saved and self.suspects.num_deaths == 0

    def _load_progress(self) -> None:
        assert self.run is not None
        self._clear()
        self.progress = SavedRun.of(self._begun.records)
        self._check_journal()
        for segment in list(self.progress.segments.values()):
            path = self.directory / segment.name
            if is_intact(path, segment.num_bytes, segment.sha256):
                self._add_saved(read_segment(path, [ROW])[ROW].to_pylist(), segment.name)
            else:
                self.notes.append(f"a segment of {segment.num_rows:,} saved rows is damaged, they run again: {path}")
                drop = DropRecord(segment.name)
                self._begun.commit(drop)
                self.progress.add(drop)
        self._is_known = True
        self._remove_others()

    def _check_journal(self) -> None:
        """A crash leaves one segment that has no line yet; where there are more, lines are gone, and their rows too."""
        names = [name for name in storage.list_names(self.directory) if SEGMENT_NAME.fullmatch(name)]
        beyond = [name for name in names if segment_number(name) > self.progress.num_segments_ever]
        if self.progress.final is None and len(beyond) > 1:
            raise StateError(
                f"the journal does not know {len(beyond)} segments of saved rows: {self.directory}", RESTART
            )

    def _add_saved(self, rows: list[int], name: str) -> None:
        for row in rows:
            if not self.saved.add(row):
                raise StateError(f"row {row} is saved twice, in {name} too: this is a bug in infer")

    def _clear(self) -> None:
        self.progress = SavedRun()
        self.saved = RowSet(0 if self.run is None else self.run.num_rows)

    def _remove_others(self) -> None:
        """Whatever no line of the journal stands for."""
        kept = {LOCK, *self.progress.segments} | ({RUN, JOURNAL} if self.run is not None else set())
        for name in storage.list_names(self.directory):
            if name not in kept and _OURS.fullmatch(name):
                storage.remove(self.directory / name)

    def _write(self, table: pa.Table) -> SegmentRecord:
        name = f"seg-{self.progress.num_segments_ever + 1:06}.parquet"
        aside = self.directory / f"{name}.tmp"
        num_bytes, sha256 = write_segment(aside, table)
        try:
            storage.rename(aside, self.directory / name, replace=True)
        except StorageError:
            # So that it can be tried again.
            with suppress(StorageError):
                storage.remove(aside)
            raise
        first_row, last_row = table[ROW][0].as_py(), table[ROW][-1].as_py()
        failures = Counter(code for code in table["error_code"].to_pylist() if code is not None)
        return SegmentRecord(name, table.num_rows, first_row, last_row, num_bytes, sha256, now(), dict(failures))


def _check_is_ours(directory: Path) -> None:
    """Before anything is written there. Hidden files are nobody's: a file manager's, or those of NFS."""
    names: list[str] = []
    # It is not there, or another run has just removed it.
    with suppress(StorageError):
        names = storage.list_names(directory)
    others = [name for name in names if not name.startswith(".") and not _OURS.fullmatch(name)]
    if others:
        raise OutputExistsError(
            f"rows cannot be saved in a directory that holds something else: {directory / others[0]}",
            "choose another name for the output, or another place for what is saved with --state-dir",
        )
