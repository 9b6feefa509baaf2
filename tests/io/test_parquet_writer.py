"""A Parquet output: columns as they were, and a file that is compressed, checked and split into row groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infer.io import parquet, parquet_writer
from infer.io.publish import OutputFile
from infer.io.reader import open_source
from infer.io.row import Row
from infer.io.schema import OutputSchema, output_schema

if TYPE_CHECKING:
    from pathlib import Path

RESULTS = pa.schema([("response", pa.string()), ("tokens", pa.int32()), ("_row", pa.int64())])
NO_INPUT = OutputSchema(pa.schema([]), RESULTS)


def record(row: Row) -> tuple[Row, dict[str, object]]:
    """`row` with a result."""
    return row, {"response": f"response {row.index}", "tokens": None, "_row": row.index}


def records(count: int) -> list[tuple[Row, dict[str, object]]]:
    """Rows of no input, with their results."""
    return [record(Row(index, None)) for index in range(count)]


def convert(path: Path, output: Path) -> None:
    """A run without a model."""
    source = open_source([str(path)])
    with OutputFile(output, output_schema(source.schema, None, RESULTS)) as out:
        for row in source.rows(source.schema.names):
            out.write([record(row)])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 1_700_000_000_000_000_001] * 300, pa.timestamp("ns", tz="UTC")),
        pa.array(["1.50", None, "99999999999999999.99"] * 300).cast(pa.decimal128(20, 2)),
        pa.array([[{"role": "user", "content": None}], [], None] * 300),
        pa.array(["a", None, "b"] * 300).dictionary_encode(),
        pa.array(["a", None, "b"] * 300, pa.string_view()),
        pa.array(["a", None, "b"] * 300, pa.large_string()),
        pa.array([b"\xff", None, b""] * 300),
        pa.array([[("k", 1)], None, []] * 300, pa.map_(pa.string(), pa.int8())),
        pa.array([[1.5, None], None, [2, 3]] * 300, pa.list_(pa.float16(), 2)),
        pa.nulls(900),
    ],
    ids=lambda column: str(column.type),
)
def test_parquet_output_keeps_columns_as_they_were(tmp_path: Path, column: pa.Array) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"x": column}), source, row_group_size=350)
    convert(source, tmp_path / "out.parquet")
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.schema.field("x").type == column.type
    assert written.column("x").combine_chunks().cast(column.type).equals(column)
    assert written.column("_row").to_pylist() == list(range(900))


def test_parquet_output_is_compressed_checked_and_split_by_rows(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    with OutputFile(path, NO_INPUT) as out:
        for _ in range(400):
            out.write(records(50))
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(group).num_rows for group in range(3)] == [8192, 8192, 3616]
    columns = [metadata.row_group(0).column(column) for column in range(3)]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert [column.statistics is not None for column in columns] == [False, True, True]
    damaged = bytearray(path.read_bytes())
    damaged[columns[2].data_page_offset + 200] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(OSError, match="CRC checksum"):
        pq.read_table(path, page_checksum_verification=True)


def test_parquet_output_is_split_by_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "_ROW_GROUP_BYTES", 10_000)
    with OutputFile(tmp_path / "out.parquet", NO_INPUT) as out:
        out.write(records(3000))
    metadata = pq.read_metadata(tmp_path / "out.parquet")
    assert [metadata.row_group(group).num_rows for group in range(3)] == [1024, 1024, 952]


def test_parquet_output_does_not_hold_more_blocks_than_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "_ROW_GROUP_BYTES", 1)
    source = tmp_path / "in.parquet"
    monkeypatch.setattr(parquet, "_BLOCK_BYTES", 1 << 16)
    pq.write_table(pa.table({"text": ["x" * (1 << 13)] * 500}), source, use_dictionary=False)
    convert(source, tmp_path / "out.parquet")
    metadata = pq.read_metadata(tmp_path / "out.parquet")
    # A block holds seven rows.
    assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= 16 * 7
