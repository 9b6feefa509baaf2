"""The end of a run: its saved rows become the output, once, however often the end is interrupted.

merge segments and input -> written aside, synced -> read back -> journal: publish -> renamed -> journal: final

A crash before the rename: done again from the segments. A crash after it: the output is recognised by its digest, and
only `final` is missing.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from infer.io.errors import InputError, StorageError
from infer.io.output_record import read_record
from infer.io.paths import FileFormat, file_format
from infer.io.seal import check_seal, file_digest
from infer.io.verify import ExpectedOutput, verify_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from infer.io.journal import FileRecord
    from infer.io.output import Output
    from infer.io.output_record import OutputRecord
    from infer.io.reader import Source
    from infer.io.row import Row
    from infer.io.run_state import RunState
    from infer.io.schema import OutputSchema

_MAX_HELD_BLOCKS = 16


def publish(
    state: RunState,
    source: Source,
    output: Output,
    schema: OutputSchema,
    record: OutputRecord,
    *,
    check_input: Callable[[], None],
    overwrite: bool,
) -> None:
    """Make the output of what is saved. All rows are.

    Raises:
        InputError: `check_input` has found that the input is no longer what it was.
        OutputExistsError: the name was taken meanwhile.
        StorageError: the file system refused, or what was written reads back as something else.
    """
    assert state.run is not None
    output.discard(state.run.run_id)
    aside = output.aside(state.run.run_id)
    batches = join_rows(source.rows(schema.kept.names), state.results())
    files = output.write(aside, batches, schema, record.footer())
    try:
        check_input()
        report = verify_output(aside, expected=ExpectedOutput(record, tuple(files)))
        if report.findings:
            raise StorageError(
                f"what was written reads back as something else: {report.findings[0]}",
                "the device may be failing: all rows are saved, run the same command again",
            )
        state.note_publish(files, record)
        output.publish(aside, overwrite=overwrite or is_replaceable(state, output))
    except BaseException:
        output.discard(state.run.run_id)
        raise
    state.finish()


def is_published(output: Output, files: Sequence[FileRecord]) -> bool:
    """Whether the output under its name consists of `files`."""
    paths = output.files()
    return len(paths) == len(files) and all(
        path.stat().st_size == file.num_bytes and _digest(path) == file.sha256
        for path, file in zip(paths, files, strict=True)
    )


def is_replaceable(state: RunState, output: Output) -> bool:
    """Whether the output under its name is this run's own, of before its failed rows were run again."""
    replaced = state.progress.replaced
    return replaced is not None and is_published(output, replaced.files)


def published_record(output: Output) -> OutputRecord | None:
    """What the output under its name says of itself; None where there is none, or it says nothing, or is damaged."""
    for path in output.files()[:1]:
        if file_format(path) is not FileFormat.PARQUET or check_seal(path)[1]:
            return None
        with path.open("rb") as file:
            try:
                return read_record(pq.read_metadata(file).metadata)
            except (ValueError, pa.ArrowException):
                return None
    return None


def join_rows(rows: Iterator[Row], results: Iterator[pa.RecordBatch]) -> Iterator[tuple[Sequence[Row], pa.RecordBatch]]:
    """The rows of the input with their results, some at a time.

    Raises:
        InputError: there are fewer rows than results.
    """
    for batch in results:
        start = 0
        while start < batch.num_rows:
            block = _next_rows(rows, batch.num_rows - start)
            if not block:
                raise InputError("the input has fewer rows than when the run began")
            yield block, batch.slice(start, len(block))
            start += len(block)


def _next_rows(rows: Iterator[Row], max_rows: int) -> list[Row]:
    """Rows hold the blocks they were read in, and a block of long rows has few of them."""
    taken: list[Row] = []
    num_blocks = 0
    for row in islice(rows, max_rows):
        if not taken or row.block is not taken[-1].block:
            num_blocks += 1
        taken.append(row)
        if num_blocks == _MAX_HELD_BLOCKS:
            break
    return taken


def _digest(path: Path) -> str | None:
    if file_format(path) is FileFormat.PARQUET:
        digest, problem = check_seal(path)
        return None if problem else digest
    with path.open("rb", buffering=0) as file:
        return file_digest(file)
