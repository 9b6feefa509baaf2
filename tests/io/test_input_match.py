"""The kept columns of an output are held against the input, whatever their types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outputs import found, write_input, write_output

from infer.io.finding import Check
from infer.io.output_record import OutputRecord
from infer.io.reader import open_source
from infer.io.verify import ExpectedOutput, verify_output

if TYPE_CHECKING:
    from pathlib import Path

BOTH = pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in.jsonl", 100)


@BOTH
@pytest.mark.parametrize(
    ("line", "column"),
    [
        (b'{"text": "other", "n": 8100, "tags": []}', "text"),
        (b'{"text": "same", "n": 8101, "tags": []}', "n"),
        (b'{"text": "same", "n": null, "tags": []}', "n"),
        (b'{"text": "same", "n": 8100, "tags": null}', "tags"),
        (b'{"text": "same", "n": 8100, "tags": ["a"]}', "tags"),
    ],
)
def test_kept_value_that_is_not_the_inputs_is_found(source: Path, suffix: str, line: bytes, column: str) -> None:
    lines = source.read_bytes().split(b"\n")
    lines[90] = b'{"text": "same", "n": 8100, "tags": []}'
    source.write_bytes(b"\n".join(lines))
    path = source.with_name("out" + suffix)
    expected = write_output(path, source)
    lines[90] = line
    source.write_bytes(b"\n".join(lines))
    report = verify_output(path, source=open_source([str(source)]), expected=expected)
    assert found(report) == [(Check.INPUT, 90, column, "not the value of the input", 1)]


@BOTH
def test_row_that_could_not_be_read_must_have_kept_nothing(source: Path, suffix: str) -> None:
    path = source.with_name("out" + suffix)
    expected = write_output(path, source, keep=["text"])
    lines = source.read_bytes().split(b"\n")
    lines[8] = b"{oops"
    source.write_bytes(b"\n".join(lines))
    report = verify_output(path, source=open_source([str(source)]), expected=expected)
    assert found(report) == [(Check.INPUT, 8, "text", "not the value of the input", 1)]


@BOTH
def test_input_of_another_length_or_other_columns_is_found(source: Path, suffix: str) -> None:
    path = source.with_name("out" + suffix)
    expected = write_output(path, source, keep=["n"])
    other = source.with_name("other.jsonl")
    other.write_text('{"m": 1}\n' * 100)
    (finding,) = verify_output(path, source=open_source([str(other)]), expected=expected).findings
    assert (finding.check, finding.message) == (
        Check.INPUT, "the output has kept what the input lacks: no such column: n",
    )  # fmt: skip
    source.write_bytes(source.read_bytes() + b'{"n": 1}\n')
    report = verify_output(path, source=open_source([str(source)]), expected=expected)
    assert found(report) == [(Check.INPUT, None, None, "the input has 101 rows, the output 100", 1)]


def test_run_with_a_limit_has_read_the_beginning_of_the_input(source: Path) -> None:
    path = source.with_name("out.jsonl")
    whole = write_output(path, source, change=lambda records: records[:90], promised=90)
    record = OutputRecord.from_json(orjson.loads(orjson.dumps(whole.record.to_json() | {"limit": 90})))
    assert record.limit == 90
    expected = ExpectedOutput(record, whole.files)
    assert found(verify_output(path, source=open_source([str(source)]), expected=expected)) == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.5, float("nan"), None] * 30),
        pa.array([1, None, 1_700_000_000_000_000_001] * 30, pa.timestamp("ns", tz="UTC")),
        pa.array(["1.50", None, "99999999999999999.99"] * 30).cast(pa.decimal128(20, 2)),
        pa.array([[{"role": "user", "content": None}], [], None] * 30),
        pa.array(["a", None, "b"] * 30).dictionary_encode(),
        pa.array([["a"], None, ["b"]] * 30, pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        pa.array(["a", None, "b"] * 30, pa.string_view()),
        pa.array([b"\xff", None, b""] * 30),
        pa.array([[("k", 1)], None, []] * 30, pa.map_(pa.string(), pa.int8())),
        pa.array([[1.5, None], None, [2, 3]] * 30, pa.list_(pa.float16(), 2)),
        pa.nulls(90),
    ],
    ids=lambda column: str(column.type),
)
@BOTH
def test_kept_column_of_any_type_is_compared(tmp_path: Path, suffix: str, column: pa.Array) -> None:
    source, other = tmp_path / "in.parquet", tmp_path / "other.parquet"
    # Arrow cannot read a dictionary inside of a list across row groups.
    pq.write_table(pa.table({"x": column}), source, row_group_size=90 if pa.types.is_list(column.type) else 35)
    path = tmp_path / f"out{suffix}"
    expected = write_output(path, source)
    assert found(verify_output(path, source=open_source([str(source)]), expected=expected)) == []
    if column.null_count < 90:
        pq.write_table(
            pa.table({"x": pa.concat_arrays([column[:80], column[81:82], column[80:81], column[82:]])}), other
        )
        report = verify_output(path, source=open_source([str(other)]), expected=expected)
        assert found(report) == [(Check.INPUT, 80, "x", "not the value of the input", 2)]
