"""The end of a run: its saved rows become the output, once, however often the end is interrupted.

merge segments and input -> written aside, synced -> read back -> journal: publish -> renamed -> journal: final

A crash before the rename: done again from the segments. A crash after it: the output is recognised by its digest, and
only `final` is missing.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from infer.io.errors import InputError, StorageError
from infer.io.output_record import read_record
from infer.io.paths import FileFormat, file_format
from infer.io.refusals import refusals
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
    try:
        batches = join_rows(source.rows(schema.kept.names), state.results())
        files = output.write(aside, batches, schema, record.footer())
        check_input()
        _read_back(aside, ExpectedOutput(record, tuple(files)))
        state.note_publish(files, record)
        output.publish(aside, overwrite=overwrite or is_replaceable(state, output))
    except BaseException:
        # What went wrong is the error to tell.
        with suppress(StorageError):
            output.discard(state.run.run_id)
        raise
    state.finish()


def is_published(output: Output, files: Sequence[FileRecord]) -> bool:
    """Whether the output under its name consists of `files`.

    Raises:
        StorageError: it cannot be read.
    """
    paths = output.files()
    with refusals("read", output.path):
        return len(paths) == len(files) and all(
            path.stat().st_size == file.num_bytes and _digest(path) == file.sha256
            for path, file in zip(paths, files, strict=True)
        )


def is_replaceable(state: RunState, output: Output) -> bool:
    """Whether the output under its name is this run's own, of before its failed rows were run again."""
    replaced = state.progress.replaced
    return replaced is not None and is_published(output, replaced.files)


def published_record(output: Output) -> OutputRecord | None:
    """What the output under its name says of itself; None where there is none, or it says nothing, or is not whole.

    Raises:
        StorageError: it cannot be read.
    """
    records, num_rows = [], 0
    for path in output.files():
        with refusals("read", path):
            if file_format(path) is not FileFormat.PARQUET or check_seal(path)[1]:
                return None
            file = path.open("rb")
        with file:
            try:
                metadata = pq.read_metadata(file)
                records.append(read_record(metadata.metadata))
            except (OSError, ValueError, pa.ArrowException):
                # Sealed, and yet no Parquet or no record.
                return None
        num_rows += metadata.num_rows
    record = records[0] if records else None
    # Of a directory each part is sound by itself, also where one is missing or another run's.
    is_whole = record is not None and num_rows == record.num_rows and all(each == record for each in records)
    return record if is_whole else None


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


def _read_back(path: Path, expected: ExpectedOutput) -> None:
    hint = "the device may be failing: all rows are saved, run the same command again"
    try:
        findings = verify_output(path, expected=expected).findings
    except InputError as error:
        raise StorageError(f"what was written cannot be read back: {error}", hint) from error
    if findings:
        raise StorageError(f"what was written reads back as something else: {findings[0]}", hint)


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
