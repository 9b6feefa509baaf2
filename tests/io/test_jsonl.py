"""JSONL files as rows: the whole file settles the columns, a bad line is a bad row."""

from __future__ import annotations

import gzip
import os
import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infer.io import jsonl
from infer.io.errors import InputError
from infer.io.reader import open_source


def write(path: Path, data: str | bytes) -> str:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def table_of(*paths: str, limit: int | None = None) -> list[tuple[int, dict[str, object], str | None]]:
    """Every row: its position, its values, what is wrong with it."""
    source = open_source(paths, limit=limit)
    names = source.schema.names
    rows = list(source.rows(names))
    assert len(rows) == source.num_rows
    return [(row.index, row.to_dict(names), row.error.message if row.error else None) for row in rows]


def test_jsonl_reads_what_editors_and_windows_leave_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"n": 1}\r\n\r\n   \n{"n": 2}  \r\n{"n": "\xe2\x80\xa8"}')
    assert table_of(path) == [(0, {"n": 1}, None), (1, {"n": 2}, None), (2, {"n": "\u2028"}, None)]


def test_jsonl_says_which_columns_become_json_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1, "b": "x", "c": {"d": 1}}\n{"a": "y", "b": null, "c": {"d": [2]}}\n')
    assert open_source([path]).notes == ("values of several types, which in Parquet become JSON text: a, c",)
    assert open_source([path], limit=1).notes == ()


@pytest.mark.parametrize(
    ("data", "hint"),
    [(b"PAR1\x15\x04", "it is Parquet"), (b"\x1f\x8b\x08\x00", ".gz"), (b"\x28\xb5\x2f\xfd\x00", ".zst")],
)
def test_jsonl_that_is_another_format_is_named(tmp_path: Path, data: bytes, hint: str) -> None:
    path = write(tmp_path / "a.jsonl", data)
    with pytest.raises(InputError, match="this is no JSONL") as caught:
        open_source([path])
    assert hint in caught.value.hint


def test_jsonl_bad_line_of_a_file_whose_name_is_not_unicode_can_be_written_down(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff.jsonl")
    path.write_bytes(b'[1]\n{"n": 1}\n')
    (_, _, message), _ = table_of(str(path))
    assert message is not None
    assert message.encode().endswith(b"a\\udcff.jsonl:1: expected an object, found a list")


def test_jsonl_bad_line_is_an_error_of_its_row(tmp_path: Path) -> None:
    bad = [b'{"n": 1,}', b"[1]", b"null", b'{"n": "\\ud835"}', b"[" * 100_000, b'{"n": NaN}', b"9" * 5000]
    path = write(tmp_path / "a.jsonl", b'\n{"n": 0}\n' + b"\n".join(bad) + b'\n{"n": 8}\n{"n": ')
    source = open_source([path])
    rows = list(source.rows(["n"]))
    assert [(row.index, row.get("n")) for row in rows] == [(0, 0), *((i, None) for i in range(1, 8)), (8, 8), (9, None)]
    assert [row.error.code for row in rows if row.error] == [
        *["invalid_input"] * 3,
        "invalid_unicode",
        *["invalid_input"] * 4,
    ]
    # The first line is blank: a row and its line are two numbers.
    assert [row.error.message.split(": ")[0] for row in rows if row.error] == [
        f"{path}:{number}" for number in [3, 4, 5, 6, 7, 8, 9, 11]
    ]
    assert rows[2].error is not None
    assert rows[2].error.message == f"{path}:4: expected an object, found a list"


def test_jsonl_line_that_is_too_long_is_an_error_of_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"n": 1}\n{"n": "' + b"x" * (16 << 20) + b'"}\n{"n": 3}\n')
    assert table_of(path) == [
        (0, {"n": 1}, None),
        (1, {"n": None}, f"{path}:2: longer than 16 MiB"),
        (2, {"n": 3}, None),
    ]


def test_jsonl_columns_come_from_the_whole_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"a": null}\n' * 2000 + '{"a": 1}\n{"b": ["x"]}\n{"a": 2.5, "c": {"d": true}}\n'
    )
    assert open_source([path]).schema == pa.schema(
        [("a", pa.float64()), ("b", pa.list_(pa.string())), ("c", pa.struct([("d", pa.bool_())]))]
    )


def test_jsonl_files_are_one_data_set(tmp_path: Path) -> None:
    one, other = write(tmp_path / "b.jsonl", '{"n": 1}\n'), write(tmp_path / "a.ndjson", 'oops\n{"n": 2}')
    empty = write(tmp_path / "c.jsonl", "")
    bad = (1, {"n": None}, f"{other}:1: invalid JSON at column 1: unexpected character, expected a JSON value")
    assert table_of(one, empty, other) == [(0, {"n": 1}, None), bad, (2, {"n": 2}, None)]


def test_jsonl_row_keeps_the_values_of_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1, "b": [{"x": null}, 2]}\n{"a": "one"}\n{"a": 123456789012345678901}\n')
    assert [values for _, values, _ in table_of(path)] == [
        {"a": 1, "b": [{"x": None}, 2]},
        {"a": "one", "b": None},
        {"a": 123456789012345678901, "b": None},
    ]


def test_jsonl_block_gives_columns_of_the_types_found(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1, "b": 1, "c": [1]}\n{"a": 2.5, "b": "x"}\n{"a": null, "c": []}\n')
    source = open_source([path])
    blocks = {row.block for row in source.rows(source.schema.names)}
    (block,) = blocks
    assert block is not None
    columns = block.columns([0, 1, 2], source.schema)
    assert columns.schema.types == [pa.float64(), pa.string(), pa.list_(pa.int64())]
    assert columns.to_pydict() == {"a": [1.0, 2.5, None], "b": ["1", '"x"', None], "c": [[1], None, []]}


def test_jsonl_limit_reads_no_further_than_it_must(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1}\n\nbad\n{"b": 2}\n{"c": 3}\n')
    later = write(tmp_path / "b.jsonl.gz", "not even gzip")
    source = open_source([path, later], limit=3)
    assert source.schema.names == ["a", "b"]
    assert [row.get("b") for row in source.rows(["b"])] == [None, None, 2]
    assert [index for index, _, _ in table_of(path, limit=10)] == [0, 1, 2, 3]
    assert table_of(path, limit=0) == []


def test_jsonl_compressed_files_are_read(tmp_path: Path) -> None:
    data = b'{"n": 1}\n{"n": 2}\n'
    gz = write(tmp_path / "a.jsonl.gz", gzip.compress(data[:9]) + gzip.compress(data[9:]))
    zst = write(tmp_path / "a.jsonl.zst", pa.compress(data, "zstd", asbytes=True))
    assert [values for _, values, _ in table_of(gz, zst)] == [{"n": 1}, {"n": 2}] * 2


def test_jsonl_compressed_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(b'{"n": 1}\n' * 100)[:-9])
    with pytest.raises(InputError, match=f"^cannot read {path}: truncated compressed stream$"):
        open_source([path])


def test_jsonl_damage_is_told_with_the_last_line_before_it(tmp_path: Path) -> None:
    lines = "".join(f'{{"n": "{random.Random(number).randbytes(500).hex()}"}}\n' for number in range(3000))
    for suffix, data in (
        ("gz", gzip.compress(lines.encode())),
        ("zst", pa.compress(lines.encode(), "zstd", asbytes=True)),
    ):
        path = write(tmp_path / f"a.jsonl.{suffix}", data[:-9])
        with pytest.raises(InputError) as caught:
            open_source([path])
        found = re.fullmatch(rf"cannot read {path} after line (\d+): truncated compressed stream", str(caught.value))
        assert found is not None, str(caught.value)
        assert 1000 < int(found[1]) < 3000
        assert caught.value.hint == f"the file is damaged, incomplete or no .{suffix}: copy or compress it again"


def test_jsonl_file_that_is_gone_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(b'{"n": 1}\n'))
    source = open_source([path])
    Path(path).unlink()
    with pytest.raises(InputError, match=f"^cannot read {path}: no such file or directory$"):
        list(source.rows(["n"]))


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("parquet", None)])
def test_input_may_have_a_name_that_is_not_unicode(tmp_path: Path, suffix: str, pack: Any) -> None:
    path = tmp_path / os.fsdecode(b"\xff.jsonl.gz" if pack else b"\xff.parquet")
    if pack:
        path.write_bytes(pack(b'{"n": 1}\n'))
    else:
        with path.open("wb") as file:
            pq.write_table(pa.table({"n": [1]}), file)
    assert table_of(str(path)) == [(0, {"n": 1}, None)]


def test_jsonl_lines_that_are_added_later_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "growing.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": ')
    source = open_source([str(path)])
    with path.open("ab") as file:
        file.write(b'2, "m": 3}\n{"n": 4}\n')
    assert [(row.get("n"), row.error is None) for row in source.rows(["n"])] == [(1, True), (None, False)]


def test_jsonl_file_that_changed_in_between_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n')
    source = open_source([str(path)])
    path.write_bytes(b'{"n": 1}\n')
    with pytest.raises(InputError, match=f"^the file has changed since it was opened: {path}$"):
        list(source.rows(["n"]))
    path.write_bytes(b'{"n": 1}\n{"n": 3}\n')
    with pytest.raises(InputError, match=f"^the file has changed since it was opened: {path}$"):
        list(source.rows(["n"]))


def test_jsonl_value_that_does_not_fit_its_column_any_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_MAX_BLOCK_ROWS", 1)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n')
    source = open_source([str(path)])
    path.write_bytes(b'{"n":"a"}\n{"n": 2}\n')
    block = next(source.rows(["n"])).block
    assert block is not None
    with pytest.raises(InputError, match=r"^column n has other types than it had at the start"):
        block.columns([0], source.schema)


def test_jsonl_table_of_too_many_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_MAX_COLUMNS", 3)
    path = write(tmp_path / "a.jsonl", "".join(f'{{"user {number}": 1}}\n' for number in range(5)))
    with pytest.raises(InputError, match=f"^{path}:4: more than 3 columns$"):
        open_source([path])


def test_jsonl_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "".join(f'{{"text": "{number:08}{"x" * 2000}"}}\n' for number in range(10_000)))
    tracemalloc.start()
    try:
        source = open_source([path])
        assert sum(1 for _ in source.rows(["text"])) == 10_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < Path(path).stat().st_size / 3
