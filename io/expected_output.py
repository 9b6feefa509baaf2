"""What the state of a run says about its output: for a verification, which without it has no digest of a JSONL file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.io.errors import StateError
from infer.io.journal import read_journal
from infer.io.output_record import OutputRecord
from infer.io.run_record import read_run
from infer.io.run_state import JOURNAL, RUN
from infer.io.saved_run import SavedRun
from infer.io.verify import ExpectedOutput

if TYPE_CHECKING:
    from pathlib import Path


def expected_output(directory: Path) -> ExpectedOutput | None:
    """What a state directory says; None where it is none, or its run has written no output yet. Takes no lock.

    Raises:
        StateError: it is damaged.
        StorageError: it cannot be read.
    """
    if read_run(directory / RUN) is None:
        return None
    progress = SavedRun.of(read_journal(directory / JOURNAL))
    publish = progress.publish
    if progress.final is None:
        # Where it may have ended just before or just behind the rename, nobody knows which output this is.
        publish = progress.replaced if publish is None else None
    if publish is None:
        return None
    try:
        return ExpectedOutput(OutputRecord.from_json(publish.record), publish.files)
    except ValueError as error:
        raise StateError(f"what is saved says nothing of its output: {directory}") from error
