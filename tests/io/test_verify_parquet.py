"""What can be wrong with a Parquet output whose digest is right."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outputs import changed, found, reseal, result, write_input, write_output

from infer.cli.result import ResultColumns, result_schema
from infer.io.finding import Check
from infer.io.output_record import OutputColumns, OutputRecord
from infer.io.parquet_writer import ParquetWriter
from infer.io.reader import open_source
from infer.io.schema import OutputSchema
from infer.io.storage import NewFile
from infer.io.verify import verify_output

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ROWS = 20
RESULTS = result_schema(ResultColumns())
TYPES = {
    "response": "string",
    "finish_reason": "string",
    "prompt_tokens": "int32",
    "completion_tokens": "int32",
    "cached_tokens": "int32",
    "error_code": "string",
    "error": "string",
    "_row": "int64",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in.jsonl", ROWS)


def write(source: Path, metadata: Mapping[str, str], results: pa.Schema = RESULTS, prefix: str = "") -> Path:
    """An output without kept columns, that says of itself what `metadata` does."""
    file = NewFile(source.with_name("out.parquet"))
    writer = ParquetWriter(file, OutputSchema(pa.schema([]), results, prefix), metadata)
    rows = list(open_source([str(source)]).rows([]))
    records = [{name: result(row)[name] for name in results.names} for row in rows]
    writer.write(rows, pa.RecordBatch.from_pylist(records, results))
    writer.close()
    file.commit()
    return file.path


def record(results: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    return OutputRecord("run", "f", ROWS, OutputColumns((), results, prefix)).footer()


def test_output_that_does_not_say_which_run_wrote_it_is_found(source: Path) -> None:
    assert found(verify_output(write(source, record(TYPES)))) == []
    source.with_name("out.parquet").unlink()
    report = verify_output(write(source, {}))
    assert found(report) == [(Check.RECORD, None, None, "the footer does not say which run wrote the file", 1)]
    assert report.num_rows == 0
    assert set(report.unchecked) == {Check.PAGES, Check.COLUMNS, Check.ROWS, Check.OUTCOMES, Check.INPUT}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"run_id": 1}'])
def test_output_that_says_something_else_of_its_run_is_found(source: Path, text: str) -> None:
    (finding,) = verify_output(write(source, {"infer": text})).findings
    assert finding.check is Check.RECORD
    assert finding.message.startswith("what the footer says of the run is damaged: ")


def test_column_that_was_not_promised_or_is_missing_is_found(source: Path) -> None:
    names = ", ".join(TYPES)
    report = verify_output(write(source, record({name: TYPES[name] for name in TYPES if name != "error"})))
    assert found(report) == [
        (Check.COLUMNS, None, None, f"the columns are {names}, expected {names.replace(' error,', '')}", 1)
    ]


def test_two_columns_of_one_name_are_found(source: Path) -> None:
    path = source.with_name("out.parquet")
    schema = pa.schema([("error", pa.string()), *RESULTS])
    footer = OutputRecord("run", "f", 0, OutputColumns(("error",), TYPES)).footer()
    with pq.ParquetWriter(path, schema) as writer:
        writer.add_key_value_metadata(footer | {"infer.sha256": "0" * 64})
    reseal(path, path.read_bytes())
    assert found(verify_output(path)) == [(Check.COLUMNS, None, None, "more than one column has the name error", 1)]


@pytest.mark.parametrize("name", ["finish_reason", "error_code", "error", "_row"])
def test_output_without_a_column_that_every_run_writes_is_found(source: Path, name: str) -> None:
    results = pa.schema([field for field in RESULTS if field.name != name])
    metadata = record({each: TYPES[each] for each in results.names})
    assert found(verify_output(write(source, metadata, results))) == [
        (Check.COLUMNS, None, None, f"a result column is missing: {name}", 1)
    ]


def test_result_column_of_another_type_is_found(source: Path) -> None:
    path = write(source, record(TYPES | {"prompt_tokens": "int64", "error": "binary"}, "r_"), prefix="r_")
    assert found(verify_output(path)) == [
        (Check.COLUMNS, None, "r_prompt_tokens", "the type is int32, expected int64", 1),
        (Check.COLUMNS, None, "r_error", "the type is string, expected binary", 1),
    ]


def test_page_that_was_damaged_before_the_digest_was_made_is_found(source: Path) -> None:
    path = source.with_name("out.parquet")
    write_output(path, source)
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    reseal(path, bytes(data))
    (finding,) = verify_output(path).findings
    assert (finding.check, finding.row) == (Check.PAGES, 0)
    assert "CRC checksum" in finding.message


def test_footer_that_cannot_be_read_is_found(source: Path) -> None:
    path = source.with_name("out.parquet")
    write_output(path, source)
    data = path.read_bytes()
    reseal(path, data[:-8] + (int.from_bytes(data[-8:-4], "little") - 1).to_bytes(4, "little") + b"PAR1")
    (finding,) = verify_output(path).findings
    assert (finding.check, finding.message[:26]) == (Check.PAGES, "the footer cannot be read:")


def test_footer_that_promises_other_rows_than_there_are_is_found(source: Path) -> None:
    path = source.with_name("out.parquet")
    write_output(path, source)
    # The number of rows, 20, then the list of row groups, as Thrift's compact protocol has them.
    one, other = b"\x16\x28\x19", b"\x16\x2a\x19"
    data = path.read_bytes()
    assert data.count(one) == 1
    reseal(path, data.replace(one, other))
    assert found(verify_output(path)) == [(Check.ROWS, None, None, "the footer promises 21 rows, the file holds 20", 1)]


def test_text_that_is_not_utf8_is_found(source: Path) -> None:
    path = source.with_name("out.parquet")
    raw = pa.array([b"\xff"])
    broken = pa.StringArray.from_buffers(1, *raw.buffers()[1:])
    schema = pa.schema([RESULTS.field(name) for name in ("response", "finish_reason", "error_code", "error", "_row")])
    columns = [broken, pa.array(["stop"]), *[pa.nulls(1, pa.string())] * 2, pa.array([0])]
    types = {field.name: str(field.type) for field in schema}
    footer = OutputRecord("run", "f", 1, OutputColumns((), types)).footer()
    with pq.ParquetWriter(path, schema) as writer:
        writer.write_table(pa.table(columns, schema=schema))
        writer.add_key_value_metadata(footer | {"infer.sha256": "0" * 64})
    reseal(path, path.read_bytes())
    (finding,) = verify_output(path).findings
    assert (finding.check, finding.row) == (Check.PAGES, 0)
    assert "UTF8" in finding.message


def test_several_row_groups_are_read_to_the_last_row(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", 20_000)
    path = tmp_path / "out.parquet"
    write_output(path, source, change=lambda records: changed(records, 19_999, response=None, error_code=None))
    assert pq.read_metadata(path).num_row_groups == 3
    report = verify_output(path)
    assert report.findings[0].row == 19_999
    assert report.num_rows == 20_000


def test_record_is_json_in_the_footer(source: Path) -> None:
    path = source.with_name("out.parquet")
    write_output(path, source, prefix="r_", keep=["n"])
    assert json.loads(pq.read_metadata(path).metadata[b"infer"]) == {
        "run_id": "run",
        "fingerprint": "f" * 64,
        "num_rows": ROWS,
        "columns": {"kept": ["n"], "results": TYPES, "prefix": "r_"},
        "limit": None,
        "failures": {},
        "versions": {"infer": "0"},
    }
