"""How much of a Parquet file is read at once, and how far it was read when it turns out to be damaged."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infer.io.errors import InputError
from infer.io.parquet_file import MAX_BLOCK_ROWS, read_batches, read_footer

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def batches_of(path: Path, *names: str) -> list[pa.RecordBatch]:
    return list(read_batches(path, read_footer(path), set(names)))


def test_batches_are_of_the_columns_asked_for_and_never_of_two_row_groups(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"n": range(1300), "m": range(1300)}, row_group_size=600)
    batches = batches_of(path, "n")
    assert [batch.num_rows for batch in batches] == [MAX_BLOCK_ROWS, 88, MAX_BLOCK_ROWS, 88, 100]
    assert {tuple(batch.schema.names) for batch in batches} == {("n",)}
    assert [value for batch in batches for value in batch.column("n").to_pylist()] == list(range(1300))
    assert sum(batch.num_rows for batch in batches_of(path)) == 1300


def test_batches_are_small_where_the_rows_asked_for_are_large(tmp_path: Path) -> None:
    columns = {"a": pa.array([{"x": "a" * MIB}] * 20), "a.y": ["b"] * 20, "c": ["c"] * 20}
    path = write(tmp_path / "a.parquet", columns, use_dictionary=False)
    assert max(batch.num_rows for batch in batches_of(path, "a")) <= 8
    assert [batch.num_rows for batch in batches_of(path, "c")] == [20]
    assert [batch.num_rows for batch in batches_of(path, "a.y")] == [20], "the name is no path into the other column"


def test_batches_are_small_where_a_large_value_is_stored_once_for_many_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": ["a" * MIB] * 600})
    footer = read_footer(path)
    before = pa.total_allocated_bytes()
    peak = max(pa.total_allocated_bytes() - before for _ in read_batches(path, footer, {"text"}))
    assert peak < 64 * MIB


def test_damage_is_told_with_the_last_row_before_it(tmp_path: Path) -> None:
    options = {"row_group_size": 100, "compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = write(tmp_path / "a.parquet", {"n": range(300)}, **options)
    data = bytearray(path.read_bytes())
    # Numbers of eight bytes, one page a row group.
    data[data.index((250).to_bytes(8, "little"))] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        InputError, match=f"^cannot read {path} after row 199: could not verify page integrity"
    ) as caught:
        batches_of(path, "n")
    assert caught.value.hint == "the file is damaged or incomplete: copy or write it again"


@pytest.mark.slow
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()], ids=str)
def test_row_group_of_more_text_than_32_bits_can_count_is_read_in_bounded_memory(
    tmp_path: Path, type_: pa.DataType
) -> None:
    num_rows = 2200
    # Enough that repeats for the file to be small, enough that does not for it to be no bomb.
    texts = [random.Random(number).randbytes(2048).hex() + "a" * MIB for number in range(20)]
    chunks = [pa.array([text], type_) for text in texts]
    column = pa.chunked_array([chunks[number % len(chunks)] for number in range(num_rows)])
    options = {"row_group_size": num_rows, "compression": "zstd", "use_dictionary": False}
    path = write(tmp_path / "a.parquet", {"text": column}, **options)
    assert pq.read_metadata(path).num_row_groups == 1
    assert pq.read_metadata(path).row_group(0).total_byte_size > 2**31
    before = pa.total_allocated_bytes()
    found = peak = 0
    for batch in read_batches(path, read_footer(path), {"text"}):
        found += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert found == num_rows
    assert peak < 64 * MIB
