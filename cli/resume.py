"""Whether a run begins, goes on, or is done already: what is saved beside its output, and what stands there."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infer.cli.figures import count, counted
from infer.cli.job_fingerprint import LOADED
from infer.io.errors import FingerprintError, OutputExistsError, StateError
from infer.io.paths import STATE_SUFFIX
from infer.io.publish import is_published, is_replaceable, published_record
from infer.io.run_record import read_run
from infer.io.run_state import RUN, RunState
from infer.io.storage import make_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infer.cli.config import JobConfig
    from infer.io.fingerprint import Difference, Fingerprint
    from infer.io.output import Output

_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Done:
    """The output is there, and is what this job would make."""

    num_rows: int
    failures: Mapping[str, int]


def state_directory(output: Path, state_dir: str | None) -> Path:
    """Where what is saved of the run that writes `output` lies."""
    if state_dir is None:
        return output.with_name(f"{output.name}{STATE_SUFFIX}")
    # The directory may have the state of outputs of one name in several places.
    mark = hashlib.sha256(str(output).encode(errors="surrogateescape")).hexdigest()[:8]
    return Path(state_dir).absolute() / f"{output.name}-{mark}{STATE_SUFFIX}"


def open_state(output: Path, state_dir: str | None, argv: Sequence[str]) -> RunState:
    """The locked state of the run that writes `output`.

    Raises:
        LockedError: another process is at it.
        StorageError: the file system refused.
    """
    directory = state_directory(output, state_dir)
    if state_dir is not None:
        make_directory(directory.parent)
    return RunState(directory, argv)


def recover(state: RunState, output: Output, config: JobConfig) -> None:
    """Take up what is saved, and refuse at once an output that is somebody else's.

    Raises:
        OutputExistsError: the name is taken, and not by what may be this job's.
        StateError: what is saved is damaged.
        StorageError: the file system refused.
    """
    if not config.restart:
        state.recover()
    # To begin again is to replace what is there, also where it is this job's own.
    if config.restart or (state.run is None and published_record(output) is None):
        output.check(overwrite=config.overwrite)
    if config.restart:
        # Only now: a run that is refused forgets nothing.
        with suppress(StateError):
            if (run := read_run(state.directory / RUN)) is not None:
                output.discard(run.run_id)
        state.discard()


def take_up(state: RunState, output: Output, fingerprint: Fingerprint, config: JobConfig) -> Done | None:
    """Bring the state to where rows can be run: empty, or with what is saved. Done where nothing is left to do.

    Raises:
        FingerprintError: what is saved belongs to another job.
        OutputExistsError: the output is another job's.
        StorageError: the file system refused.
    """
    run, progress = state.run, state.progress
    if run is None:
        record = published_record(output)
        if record is not None and record.fingerprint == fingerprint.sha256 and not config.overwrite:
            return Done(record.num_rows, record.failures)
        output.check(overwrite=config.overwrite)
        return None
    changes = run.fingerprint.hard_changes(fingerprint, unknown=LOADED)
    if changes and not state.saved and progress.final is None:
        # Nothing would be lost.
        output.discard(run.run_id)
        state.discard()
        return take_up(state, output, fingerprint, config)
    is_there = progress.publish is not None and is_published(output, progress.publish.files)
    if progress.final is None:
        if changes:
            raise changed(changes, len(state.saved))
        if is_there:
            # It ended between the rename and the last line of the journal.
            output.discard(run.run_id)
            # The rename may not have reached the disk, and the segments are about to go.
            sync_directory(output.path.parent)
            state.finish()
            return Done(run.num_rows, progress.failures)
        output.discard(run.run_id)
    elif is_there and not config.overwrite:
        if not changes:
            return Done(run.num_rows, progress.failures)
        raise OutputExistsError(
            f"the output exists, and is of a job that {differs(changes)}: {output.path}", "replace it with --overwrite"
        )
    output.check(overwrite=config.overwrite or is_replaceable(state, output))
    if progress.final is not None:
        state.discard()
    return None


def changed(changes: Sequence[Difference], num_saved: int) -> FingerprintError:
    """What to say of fields that are not what they were."""
    return FingerprintError(
        f"what is saved belongs to a job that {differs(changes)}",
        f"run it as it was to continue, or discard its {count(num_saved)} saved rows with --restart",
    )


def differs(changes: Sequence[Difference]) -> str:
    """How many fields do, and the first of them."""
    shown = "; ".join(map(str, changes[:_MAX_SHOWN])) + ("; ..." if len(changes) > _MAX_SHOWN else "")
    return f"differs in {counted(len(changes), 'field')}: {shown}"
