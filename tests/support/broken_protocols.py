"""Ways to save rows that lose or double them, slips that are easily made: a test of the protocol must see them all.

Each changes the code of this process, for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infer.io import journal, storage
from infer.io.output_directory import OutputDirectory
from infer.io.output_file import OutputFile
from infer.io.run_state import RunState
from infer.io.segment import ROW, result_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _unsynced(begins_with: str) -> Callable[[], None]:
    def install() -> None:
        commit = storage.NewFile.commit

        def commit_unsynced(file: storage.NewFile) -> None:
            if not file.path.name.startswith(begins_with):
                commit(file)
                return
            file._drain()
            descriptor, file._descriptor = file._descriptor, None
            assert descriptor is not None
            storage.os.close(descriptor)

        storage.NewFile.commit = commit_unsynced  # type: ignore[method-assign]

    return install


def _directories_unsynced() -> None:
    storage.sync_directory = lambda path: None


def _segment_name_unsynced() -> None:
    rename = storage.rename

    def rename_unsynced(source: Path, target: Path, *, replace: bool) -> None:
        if target.name.startswith("seg-"):
            storage.os.rename(source, target)
        else:
            rename(source, target, replace=replace)

    storage.rename = rename_unsynced


def _journal_unsynced() -> None:
    storage.AppendFile.sync = lambda self: None  # type: ignore[method-assign]


def _line_before_segment() -> None:
    save, rename = RunState.save, storage.rename

    def save_late(state: RunState, *args: Any) -> None:
        renames: list[Any] = []
        storage.rename = lambda *each, **kwargs: renames.append((each, kwargs))
        save(state, *args)
        storage.rename = rename
        for each, kwargs in renames:
            rename(*each, **kwargs)

    RunState.save = save_late  # type: ignore[method-assign]


def _said_before_saved() -> None:
    def save(state: RunState, records: Any, schema: Any) -> None:
        for record in records:
            state.saved.add(record[ROW])
        segment = state._write(result_table(records, schema))
        assert state._journal is not None
        state._journal.commit(segment)
        state.progress.add(segment)

    RunState.save = save  # type: ignore[method-assign]


def _final_before_rename() -> None:
    note_publish, finish = RunState.note_publish, RunState.finish

    def note_and_finish(state: RunState, files: Any, record: Any) -> None:
        note_publish(state, files, record)
        finish(state)

    RunState.note_publish = note_and_finish  # type: ignore[method-assign]
    RunState.finish = lambda self: None  # type: ignore[method-assign]


def _segments_removed_before_rename() -> None:
    note_publish = RunState.note_publish

    def note_and_remove(state: RunState, files: Any, record: Any) -> None:
        note_publish(state, files, record)
        for name in state.progress.segments:
            storage.remove(state.directory / name)

    RunState.note_publish = note_and_remove  # type: ignore[method-assign]


def _no_publish_record() -> None:
    RunState.note_publish = lambda self, files, record: None  # type: ignore[method-assign]


def _publish_record_unsynced() -> None:
    commit = journal.Journal.commit

    def commit_unsynced(self: journal.Journal, record: Any) -> None:
        if isinstance(record, journal.PublishRecord):
            self.note(record)
        else:
            commit(self, record)

    journal.Journal.commit = commit_unsynced  # type: ignore[method-assign]


def _torn_line_left() -> None:
    storage.AppendFile.truncate = lambda self, num_bytes: None  # type: ignore[method-assign]


def _orphans_left() -> None:
    RunState._remove_others = lambda self: None  # type: ignore[method-assign]


def _output_in_place() -> None:
    OutputFile.aside = lambda self, run_id: self.path  # type: ignore[method-assign]
    OutputFile.publish = lambda self, aside, overwrite: storage.sync_directory(self.path.parent)  # type: ignore[method-assign]
    OutputFile.discard = lambda self, run_id: None  # type: ignore[method-assign]


def _old_directory_emptied_in_place() -> None:
    def publish(self: OutputDirectory, aside: Path, *, overwrite: bool) -> None:
        if overwrite:
            storage.remove_directory(self.path)
        storage.rename_directory(aside, self.path)

    OutputDirectory.publish = publish  # type: ignore[method-assign]


def _directory_output_unsynced() -> None:
    write = OutputDirectory.write

    def write_unsynced(self: OutputDirectory, *args: Any) -> Any:
        sync = storage.sync_directory
        storage.sync_directory = lambda path: None
        try:
            return write(self, *args)
        finally:
            storage.sync_directory = sync

    OutputDirectory.write = write_unsynced  # type: ignore[method-assign]


BROKEN: dict[str, Callable[[], None]] = {
    "the segment is not synced": _unsynced("seg-"),
    "the output is renamed before it is synced": _unsynced(".out"),
    "run.json is not synced": _unsynced("run.json"),
    "no directory is synced": _directories_unsynced,
    "the segment's name is not synced": _segment_name_unsynced,
    "the journal is not synced": _journal_unsynced,
    "the journal's line comes before the segment": _line_before_segment,
    "rows are said to be saved before they are": _said_before_saved,
    "final comes before the output's rename": _final_before_rename,
    "segments are removed before the output's rename": _segments_removed_before_rename,
    "nothing tells that the output is about to be renamed": _no_publish_record,
    "what tells that the output is about to be renamed is not synced": _publish_record_unsynced,
    "a torn line is left in the journal": _torn_line_left,
    "orphans are left": _orphans_left,
    "the output is written in place": _output_in_place,
    "an old directory is emptied in place": _old_directory_emptied_in_place,
    "names in a directory output are not synced": _directory_output_unsynced,
}
