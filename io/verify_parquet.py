"""Verifies a Parquet file of an output: its seal, then everything in it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from infer.io.finding import Check, Finding
from infer.io.output_record import read_record, type_text
from infer.io.row_rules import NEEDED
from infer.io.seal import check_seal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infer.io.output_record import OutputColumns
    from infer.io.verification import Verification

_BATCH_ROWS = 4096
_BATCH_BYTES = 16 << 20
_READ_BUFFER_BYTES = 1 << 20


def verify_parquet(path: Path, sha256: str | None, verification: Verification) -> None:
    """Look at one file. What is wrong goes to `verification`; a wrong digest ends it, before anything is parsed.

    `sha256` is the seal that the run has noted, where it is known.

    Raises:
        OSError: the file cannot be read at all.
        InputError: the input cannot.
    """
    carried, problem = check_seal(path)
    if not problem and sha256 is not None and carried != sha256:
        problem = f"the file carries another digest than the run has noted: {carried}, not {sha256}"
    if problem:
        verification.fail(Check.DIGEST, problem, path)
    if verification.is_broken:
        return
    # Opened here: Arrow takes no name that is not UTF-8.
    with path.open("rb") as stream:
        try:
            file = pq.ParquetFile(stream, buffer_size=_READ_BUFFER_BYTES, page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            verification.fail(Check.PAGES, f"the footer cannot be read: {error}", path)
            return
        columns = _columns(file, path, verification)
        if columns is None:
            verification.is_broken = True
        else:
            _verify_rows(file, columns, path, verification)


def _columns(file: pq.ParquetFile, path: Path, verification: Verification) -> OutputColumns | None:
    """The columns that the file says it has, where it has them and is of the same run as the others."""
    try:
        record = read_record(file.metadata.metadata)
    except ValueError as error:
        verification.findings.add(Finding(Check.RECORD, f"what the footer says of the run is damaged: {error}", path))
        return None
    if record is None:
        verification.findings.add(Finding(Check.RECORD, "the footer does not say which run wrote the file", path))
        return None
    known = verification.record = verification.record or record
    if record != known:
        # The fingerprint may differ where the run's id does not, and the other way round.
        one, other = (f"{each.run_id} with fingerprint {each.fingerprint:.16}" for each in (record, known))
        verification.findings.add(Finding(Check.RECORD, f"written by run {one}, expected {other}", path))
        return None
    problems = list(_column_problems(file.schema_arrow, record.columns))
    for column, message in problems:
        verification.findings.add(Finding(Check.COLUMNS, message, path, column=column))
    return None if problems else record.columns


def _column_problems(schema: pa.Schema, columns: OutputColumns) -> list[tuple[str | None, str]]:
    if schema.names != columns.names:
        return [(None, f"the columns are {', '.join(schema.names)}, expected {', '.join(columns.names)}")]
    twice = [name for name, count in Counter(columns.names).items() if count > 1]
    if twice:
        return [(None, f"more than one column has the name {', '.join(twice)}")]
    missing = [name for name in NEEDED if name not in columns.results]
    if missing:
        return [(None, f"a result column is missing: {', '.join(missing)}")]
    found = {name: type_text(schema.field(columns.prefix + name).type) for name in columns.results}
    return [
        (columns.prefix + name, f"the type is {found[name]}, expected {expected}")
        for name, expected in columns.results.items()
        if found[name] != expected
    ]


def _verify_rows(file: pq.ParquetFile, columns: OutputColumns, path: Path, verification: Verification) -> None:
    verification.begin_rows(columns, path)
    first_row = verification.num_rows
    try:
        for batch in _batches(file):
            batch.validate(full=True)
            if verification.match is not None:
                for name, offsets in verification.match.differing(batch):
                    verification.add_differences(name, offsets, path)
            verification.add_rows({name: batch.column(columns.prefix + name) for name in columns.results}, path)
    except (OSError, pa.ArrowException) as error:
        verification.fail(Check.PAGES, f"cannot be read on: {error}", path)
        return
    found = verification.num_rows - first_row
    if found != file.metadata.num_rows:
        message = f"the footer promises {file.metadata.num_rows} rows, the file holds {found}"
        verification.findings.add(Finding(Check.ROWS, message, path))


def _batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
        num_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes))
        # Asked for one by one: of several groups Arrow keeps all buffers to the end.
        yield from file.iter_batches(num_rows, row_groups=[number], use_threads=False)
