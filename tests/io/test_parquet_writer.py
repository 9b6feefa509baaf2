"""A Parquet output: columns as they were, and a file that is compressed, checked and split into row groups."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from publishing import NO_INPUT, RESULTS, convert, publish_no_input, result_batches

from infer.io import parquet_file, parquet_writer
from infer.io.parquet_writer import ParquetWriter
from infer.io.row import Row
from infer.io.seal import check_seal
from infer.io.storage import NewFile

if TYPE_CHECKING:
    from pathlib import Path


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
    convert([str(source)], tmp_path / "out.parquet")
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.schema.field("x").type == column.type
    assert written.column("x").combine_chunks().cast(column.type).equals(column)
    assert written.column("_row").to_pylist() == list(range(900))


def test_parquet_output_is_compressed_checked_and_split_by_rows(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    publish_no_input(path, 20_000, at_once=64)
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
    publish_no_input(tmp_path / "out.parquet", 3000, at_once=1024)
    metadata = pq.read_metadata(tmp_path / "out.parquet")
    assert [metadata.row_group(group).num_rows for group in range(3)] == [1024, 1024, 952]


def test_parquet_output_does_not_hold_more_blocks_than_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "_ROW_GROUP_BYTES", 1)
    source = tmp_path / "in.parquet"
    monkeypatch.setattr(parquet_file, "_BLOCK_BYTES", 1 << 16)
    pq.write_table(pa.table({"text": ["x" * (1 << 13)] * 500}), source, use_dictionary=False)
    convert([str(source)], tmp_path / "out.parquet", at_once=500)
    metadata = pq.read_metadata(tmp_path / "out.parquet")
    # A block holds seven rows.
    assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= 16 * 7


def test_parquet_output_carries_the_digest_of_itself_beside_what_is_given(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    file = NewFile(path)
    writer = ParquetWriter(file, NO_INPUT, {"infer": "x", "text": "infer.sha256\x18@" + "0" * 64})
    for batch in result_batches(3):
        writer.write([Row(index, None) for index in range(3)], batch)
    writer.close()
    file.commit()
    metadata = pq.read_metadata(path).metadata
    assert (metadata[b"infer"], metadata[b"infer.sha256"].decode()) == (b"x", writer.sha256)
    data = path.read_bytes()
    blank = data.replace(metadata[b"infer.sha256"], b"0" * 64)
    assert len(blank) == len(data)
    assert hashlib.sha256(blank).hexdigest() == writer.sha256


@pytest.mark.parametrize("name", ["infer.sha256\x18@" + "0" * 64, "infer.sha256", "infer"])
def test_parquet_output_is_sealed_whatever_the_columns_are_called(tmp_path: Path, name: str) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({name: [name]}), source)
    convert([str(source)], tmp_path / "out.parquet")
    assert check_seal(tmp_path / "out.parquet")[1] == ""


def test_parquet_output_is_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "out" / "part-00000.parquet"
    path.parent.mkdir()
    (path.parent / "_SUCCESS").touch()
    publish_no_input(path, 20_000)
    expected = pq.read_table(path)
    dataset = ds.dataset(path.parent)
    assert dataset.schema.names == RESULTS.names
    assert dataset.to_table().equals(expected)
    assert dataset.count_rows(filter=ds.field("_row") < 400) == 400
    assert ds.dataset(path.parent).to_table(columns=["response"]).column(0).equals(expected.column("response"))
