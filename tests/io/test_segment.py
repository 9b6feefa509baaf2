"""A segment holds what was written, or says that it does not."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infer.io import storage
from infer.io.errors import StateError, StorageError
from infer.io.segment import is_intact, read_segment, result_table, write_segment

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("response", pa.string()), ("tokens", pa.int32()), ("_row", pa.int64())])


def records(*rows: int) -> list[dict[str, object]]:
    return [{"response": f"response {row}", "tokens": None, "_row": row} for row in rows]


def test_result_table_is_in_the_order_of_rows_and_has_the_types_of_the_schema() -> None:
    table = result_table(records(5, 2, 9), SCHEMA)
    assert table.schema == SCHEMA
    assert table.to_pylist() == records(2, 5, 9)
    # Where no row says what type a column is, and where there is no row.
    assert result_table([], SCHEMA).schema == SCHEMA


def test_segment_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "seg"
    num_bytes, sha256 = write_segment(path, result_table(records(3, 1), SCHEMA))
    data = path.read_bytes()
    assert (num_bytes, sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert is_intact(path, num_bytes, sha256)
    assert read_segment(path).to_pylist() == records(1, 3)
    assert read_segment(path).schema == SCHEMA
    assert read_segment(path, ["_row"]).to_pydict() == {"_row": [1, 3]}


def test_segment_that_changed_is_not_intact(tmp_path: Path) -> None:
    path = tmp_path / "seg"
    num_bytes, sha256 = write_segment(path, result_table(records(1), SCHEMA))
    data = path.read_bytes()
    for damaged in (data[:-1], data + b"\0", bytes([data[0] ^ 1]) + data[1:], b""):
        path.write_bytes(damaged)
        assert not is_intact(path, num_bytes, sha256)
    path.write_bytes(data)
    assert not is_intact(path, num_bytes + 1, sha256)
    path.unlink()
    assert not is_intact(path, num_bytes, sha256)


def test_segment_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "seg"
    write_segment(path, result_table(records(*range(200)), SCHEMA))
    data = path.read_bytes()
    message = f"^a segment of saved rows cannot be read: {path}$"
    for damaged in (b"", data[:-1], data[:50]):
        path.write_bytes(damaged)
        with pytest.raises(StateError, match=message) as caught:
            read_segment(path)
        assert caught.value.hint == "run the same command again: its rows are run again"
    path.unlink()
    with pytest.raises(StateError, match=message):
        read_segment(path)


def test_segment_with_a_flipped_bit_in_its_pages_is_found_while_reading(tmp_path: Path) -> None:
    path = tmp_path / "seg"
    write_segment(path, result_table(records(*range(200)), SCHEMA))
    data = path.read_bytes()
    column = pq.read_metadata(path).row_group(0).column(0)
    end = column.dictionary_page_offset or column.data_page_offset
    for position in range(end + column.total_compressed_size - 20, end + column.total_compressed_size):
        path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with pytest.raises(StateError):
            read_segment(path)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_segment_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(storage.os, call, refuse)
    with pytest.raises(StorageError, match="input/output error"):
        write_segment(tmp_path / "seg", result_table(records(1), SCHEMA))
    assert list(tmp_path.iterdir()) == []


def test_segment_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "seg").write_text("old")
    with pytest.raises(StorageError, match="file exists"):
        write_segment(tmp_path / "seg", result_table(records(1), SCHEMA))
    assert (tmp_path / "seg").read_text() == "old"
