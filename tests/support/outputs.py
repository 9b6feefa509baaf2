"""Small inputs, and outputs as a run writes them, without a run."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

from infer.cli.result import ResultColumns, result_schema
from infer.io.journal import FileRecord
from infer.io.jsonl_writer import JsonlWriter
from infer.io.output_record import OutputRecord, output_columns
from infer.io.parquet_writer import ParquetWriter
from infer.io.reader import open_source
from infer.io.schema import output_schema
from infer.io.storage import NewFile
from infer.io.verify import ExpectedOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from infer.io.finding import Check
    from infer.io.row import Row
    from infer.io.verify import VerifyReport

    Records = list[tuple[Row, dict[str, object]]]

FINGERPRINT = "f" * 64


def write_input(path: Path, num_rows: int) -> Path:
    """JSONL with texts of many lengths, nulls, lists, and a line in forty that cannot be read."""
    draw = random.Random(num_rows)
    lines = []
    for index in range(num_rows):
        row = {"text": draw.randbytes(draw.randrange(40)).hex(), "n": index * index, "tags": ["a", None][: index % 3]}
        if index % 5 == 1:
            row["n"] = None
        lines.append(b"{oops" if index % 40 == 7 else orjson.dumps(row))
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def result(row: Row, *, several: bool = False) -> dict[str, object]:
    """What a run records of `row`. Some rows fail, in the engine and before it."""
    values: dict[str, object] = dict.fromkeys(result_schema(ResultColumns(several=several)).names)
    values["_row"] = row.index
    if row.error is not None:
        return values | {"finish_reason": "error", "error_code": row.error.code, "error": row.error.message}
    values |= {"prompt_tokens": 7, "completion_tokens": row.index % 50, "cached_tokens": 0}
    if row.index % 11 == 3:
        return values | {"finish_reason": "error", "error_code": "oom", "error": "no room for it"}
    text = f"answer {row.index}"
    answer: dict[str, object] = {"responses": [text, ""]} if several else {"response": text}
    return values | answer | {"finish_reason": "length" if row.index % 13 == 5 else "stop"}


def write_output(
    path: Path,
    source: Path,
    *,
    change: Callable[[Records], Records] | None = None,
    several: bool = False,
    prefix: str = "",
    keep: list[str] | None = None,
    num_parts: int = 1,
    run_id: str = "run",
    promised: int | None = None,
    at_once: int = 100,
) -> ExpectedOutput:
    """Write what a run over `source` would: a file, or a directory where `path` has no suffix.

    `change` gets the records before they are written: the digest is right, what stands there is not. `promised`: how
    many rows the record says there are. Returns what the state of the run says.
    """
    opened = open_source([str(source)])
    schema = output_schema(opened.schema, keep, result_schema(ResultColumns(several=several)), prefix)
    num_rows = opened.num_rows if promised is None else promised
    record = OutputRecord(run_id, FINGERPRINT, num_rows, output_columns(schema), versions={"infer": "0"})
    records = [(row, result(row, several=several)) for row in opened.rows(schema.kept.names)]
    if change is not None:
        records = change(records)
    files = [path]
    if not path.suffix:
        path.mkdir()
        (path / "_SUCCESS").touch()
        files = [path / f"part-{number:05}.parquet" for number in range(num_parts)]
    size = -(-len(records) // len(files))
    digests = []
    for number, file in enumerate(files):
        new = NewFile(file)
        is_parquet = file.suffix == ".parquet"
        writer = ParquetWriter(new, schema, record.footer()) if is_parquet else JsonlWriter(new, schema)
        part = records[number * size : (number + 1) * size]
        for start in range(0, len(part), at_once):
            rows, results = zip(*part[start : start + at_once], strict=True)
            writer.write(rows, pa.RecordBatch.from_pylist(list(results), schema.results))
        writer.close()
        new.commit()
        assert writer.sha256 is not None
        digests.append(FileRecord(file.stat().st_size, writer.sha256))
    return ExpectedOutput(record, tuple(digests))


def changed(records: Records, index: int, **values: object) -> Records:
    """`records` with other results in one row."""
    row, result = records[index]
    return [*records[:index], (row, result | values), *records[index + 1 :]]


def rows_at(records: Records, indices: Sequence[int]) -> Records:
    """Rows of `records` by their positions."""
    return [records[index] for index in indices]


def found(report: VerifyReport) -> list[tuple[Check, int | None, str | None, str, int]]:
    """The findings, without their files."""
    return [(each.check, each.row, each.column, each.message, each.num_rows) for each in report.findings]


def reseal(path: Path, data: bytes) -> None:
    """Write a Parquet file with a right digest: it was wrong before its digest was made."""
    start = data.rindex(b"infer.sha256\x18@") + 14
    blank = data[:start] + b"0" * 64 + data[start + 64 :]
    path.write_bytes(data[:start] + hashlib.sha256(blank).hexdigest().encode() + data[start + 64 :])
