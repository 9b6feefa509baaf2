"""Parquet files as rows: lossless, in order, and what is wrong with a file said by its name."""

from __future__ import annotations

import datetime
import decimal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infer.io import parquet_file
from infer.io.errors import InputError
from infer.io.reader import open_source

if TYPE_CHECKING:
    from infer.io.row import Row


def write(path: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def rows_of(*paths: str, limit: int | None = None) -> list[Row]:
    source = open_source(paths, limit=limit)
    return list(source.rows(source.schema.names))


def values_of(*paths: str) -> list[dict[str, object]]:
    source = open_source(paths)
    return [row.to_dict(source.schema.names) for row in source.rows(source.schema.names)]


def error_of(*paths: str) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        rows_of(*paths)
    return str(caught.value), caught.value.hint


def broken_text(*values: bytes) -> pa.Array:
    """A string column as a careless writer makes it."""
    return pa.array(values, pa.binary()).view(pa.string())


def test_parquet_rows_come_in_order_across_row_groups_and_files(tmp_path: Path) -> None:
    one = write(tmp_path / "b.parquet", {"n": range(2500)}, row_group_size=700)
    other = write(tmp_path / "a.parquet", {"n": range(2500, 2503)})
    source = open_source([one, other])
    assert source.num_rows == 2503
    assert source.paths == (Path(one), Path(other))
    assert [(row.index, row.get("n"), row.error) for row in source.rows(["n"])] == [(i, i, None) for i in range(2503)]


def test_parquet_rows_can_be_read_twice(tmp_path: Path) -> None:
    source = open_source([write(tmp_path / "a.parquet", {"n": [1, 2]})])
    assert [[row.get("n") for row in source.rows(["n"])] for _ in range(2)] == [[1, 2], [1, 2]]


def test_parquet_limit_ends_the_data_set(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.parquet", {"n": range(600)}) for name in "ab"]
    for limit, expected in [(0, 0), (601, 601), (5000, 1200)]:
        assert open_source(paths, limit=limit).num_rows == expected
        assert len(rows_of(*paths, limit=limit)) == expected


def test_parquet_rows_without_columns_are_still_rows(tmp_path: Path) -> None:
    source = open_source([write(tmp_path / "a.parquet", {"n": [1, 2, 3]})])
    assert [row.index for row in source.rows([])] == [0, 1, 2]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pa.array(["x"], pa.large_string()), "x"),
        (pa.array(["x"], pa.string_view()), "x"),
        (pa.array(["x"]).dictionary_encode(), "x"),
        (pa.array([None], pa.string()), None),
        (pa.array([7], pa.int8()), 7),
        (pa.array([datetime.date(2024, 1, 2)]), datetime.date(2024, 1, 2)),
        (pa.array([decimal.Decimal("1.50")]), decimal.Decimal("1.50")),
        (pa.array([[{"role": "user", "content": "hi"}]]), [{"role": "user", "content": "hi"}]),
        (pa.array([1500], pa.timestamp("ns")), "1970-01-01T00:00:00.000001500"),
        (pa.array([None], pa.timestamp("ns")), None),
        (pa.array([1500], pa.timestamp("us")), datetime.datetime(1970, 1, 1, 0, 0, 0, 1500)),
        (pa.array([[{"at": 1}]], pa.list_(pa.struct([("at", pa.time64("ns"))]))), [{"at": "00:00:00.000000001"}]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.timestamp("ns"))), [("k", "1970-01-01T00:00:00.000000001")]),
        (pa.array([5_000_000], pa.int32()).cast(pa.date32()), "15659-07-15"),
        (pa.array([7], pa.timestamp("us", tz="Nowhere/Zone")), "7"),
        (pa.array([2**62], pa.timestamp("us")), str(2**62)),
        (pa.array([2**63 - 1], pa.timestamp("ns")), "2262-04-11T23:47:16.854775807"),
        (pa.array([2**62], pa.duration("s")), str(2**62)),
        (pa.array([1500], pa.duration("ns")), "1500"),
        (pa.array([decimal.Decimal("1" * 60)], pa.decimal256(76, 2)), decimal.Decimal("1" * 60)),
        (pa.array([None, 3], pa.int64()).slice(1), 3),
        (pa.array([[("k", None)]], pa.map_(pa.string(), pa.string())), [("k", None)]),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [1, 2]),
        (pa.array([[1, 2]], pa.list_view(pa.int8())), [1, 2]),
        (pa.array([[1, 2]], pa.large_list_view(pa.int8())), [1, 2]),
        (pa.array([uuid.UUID(int=5).bytes], pa.uuid()), uuid.UUID(int=5)),
        (pa.array(['{"a":1}'], pa.json_()), '{"a":1}'),
        (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())), True),
        (pa.nulls(1), None),
    ],
)
def test_parquet_row_gives_python_values(tmp_path: Path, column: pa.Array, value: object) -> None:
    (row,) = rows_of(write(tmp_path / "a.parquet", {"x": column}))
    assert row.get("x") == value
    assert row.block is not None
    assert row.block.columns([0], pa.schema([("x", column.type)])).column("x").equals(column), "kept without a loss"


def test_parquet_block_takes_any_rows(tmp_path: Path) -> None:
    block = rows_of(write(tmp_path / "a.parquet", {"n": range(10), "m": range(10)}))[0].block
    assert block is not None
    schema = pa.schema([("n", pa.int64())])
    assert block.columns([3, 4, 5], schema).to_pydict() == {"n": [3, 4, 5]}
    assert block.columns([3, 5, 9], schema).to_pydict() == {"n": [3, 5, 9]}


def test_parquet_files_of_several_writers_are_one_data_set(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": "hi"}]]
    write(tmp_path / "1.parquet", {"text": ["a"], "messages": pa.array([[]], pa.list_(pa.null()))})
    write(tmp_path / "2.parquet", {"text": pa.array(["b"], pa.large_string()), "messages": messages})
    write(tmp_path / "3.parquet", {"messages": messages, "text": pa.array(["c"]).dictionary_encode(), "n": [1]})
    assert values_of(str(tmp_path)) == [
        {"text": "a", "messages": [], "n": None},
        {"text": "b", "messages": messages[0], "n": None},
        {"text": "c", "messages": messages[0], "n": 1},
    ]


def test_parquet_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    one, other = write(tmp_path / "1.parquet", {"x": [1]}), write(tmp_path / "2.parquet", {"x": ["a"]})
    assert error_of(one, other) == (f"column x is string in {other} but int64 in {one}", "cast one of them")


def test_parquet_partition_keys_are_columns(tmp_path: Path) -> None:
    write(tmp_path / "year=2023" / "day=07" / "a.parquet", {"n": [1]})
    write(tmp_path / "year=2024" / "day=x" / "a.parquet", {"n": [2, 3]})
    write(tmp_path / "year=__HIVE_DEFAULT_PARTITION__" / "a.parquet", {"n": [4]})
    source = open_source([str(tmp_path)])
    assert source.schema == pa.schema([("n", pa.int64()), ("year", pa.int64()), ("day", pa.string())])
    assert values_of(str(tmp_path)) == [
        {"n": 1, "year": 2023, "day": "07"},
        {"n": 2, "year": 2024, "day": "x"},
        {"n": 3, "year": 2024, "day": "x"},
        {"n": 4, "year": None, "day": None},
    ]


def test_parquet_column_wins_over_a_partition_key_of_its_name(tmp_path: Path) -> None:
    write(tmp_path / "year=2023" / "a.parquet", {"year": ["MMXXIII"]})
    assert values_of(str(tmp_path)) == [{"year": "MMXXIII"}]
    assert open_source([str(tmp_path)]).notes == (
        "partition key year is also a column of the files: the column is used",
    )


def test_parquet_file_that_is_no_parquet_is_named_before_any_row(tmp_path: Path) -> None:
    good = write(tmp_path / "a.parquet", {"n": range(1000)})
    bad = tmp_path / "b.parquet"
    bad.touch()
    with pytest.raises(InputError, match=f"^cannot read {bad}: parquet file size is 0 bytes$"):
        open_source([str(tmp_path)])
    bad.write_bytes(Path(good).read_bytes()[:-100])
    with pytest.raises(InputError, match=f"^cannot read {bad}: parquet magic bytes not found in footer"):
        open_source([str(tmp_path)])


def test_parquet_damage_inside_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = Path(
        write(
            tmp_path / "a.parquet",
            {"n": range(5000)},
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    assert error_of(str(path))[0].startswith(f"cannot read {path}: could not verify page integrity")


def test_parquet_file_that_changed_in_between_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"n": [1, 2]})
    source = open_source([path])
    write(tmp_path / "a.parquet", {"n": [1, 2, 3]})
    with pytest.raises(InputError, match=r"^the file has changed since it was opened: "):
        next(source.rows(["n"]))
    write(tmp_path / "a.parquet", {"n": [1, 3]})
    with pytest.raises(InputError, match=r"^the file has changed since it was opened: "):
        next(source.rows(["n"]))
    write(tmp_path / "a.parquet", {"n": [1, 2]})
    assert [row.get("n") for row in source.rows(["n"])] == [1, 2]
    Path(path).unlink()
    with pytest.raises(InputError, match=f"^cannot read {path}: no such file or directory$"):
        next(source.rows(["n"]))


@pytest.mark.parametrize("promised", [1001, 999])
def test_parquet_file_that_holds_other_than_it_promises_is_refused(tmp_path: Path, promised: int) -> None:
    path = Path(write(tmp_path / "a.parquet", {"n": range(1000)}))
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # Thrift writes a number in groups of seven bits; the first of 64 bits in a footer is that of the rows.
    begin = data.index(b"\x16\xd0\x0f", footer)
    path.write_bytes(data[: begin + 1] + bytes([promised * 2 & 127 | 128, promised * 2 >> 7]) + data[begin + 3 :])
    message, _ = error_of(str(path))
    assert message == f"the footer promises {promised} rows, the file holds 1000: {path}"


def test_parquet_row_group_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.parquet", {"n": range(1000)}, use_dictionary=False, compression="none"))
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    changed = data[footer:].replace(b"\x16\xd0\x0f", b"\x16\xd2\x0f")
    path.write_bytes(data[:footer] + changed)
    assert open_source([str(path)]).num_rows == 1001
    assert error_of(str(path))[0] == f"the footer promises 1001 rows, the file holds 1000: {path}"


def test_parquet_text_that_is_not_utf8_is_an_error_of_its_row(tmp_path: Path) -> None:
    text = broken_text(b"good", b"\xff\xfe", b"fine", b"\xed\xa0\x80")
    path = write(tmp_path / "a.parquet", {"text": text, "at": pa.array([1, 2, 3, 4], pa.timestamp("ns"))})
    rows = rows_of(path, path)
    assert [row.get("text") for row in rows] == ["good", None, "fine", None] * 2
    assert [row.error and (row.error.code, row.error.message) for row in rows[4:]] == [
        None,
        ("invalid_unicode", f"{path}: row 1: column text is not valid UTF-8"),
        None,
        ("invalid_unicode", f"{path}: row 3: column text is not valid UTF-8"),
    ]


def test_parquet_broken_text_in_a_column_that_is_not_read_harms_nobody(tmp_path: Path) -> None:
    source = open_source([write(tmp_path / "a.parquet", {"text": broken_text(b"\xff"), "n": [1]})])
    assert [(row.get("n"), row.error) for row in source.rows(["n"])] == [(1, None)]


def test_parquet_column_names_may_hold_anything(tmp_path: Path) -> None:
    columns = {"a": [1], "a.b": [2], "": [3], "c": pa.array([{"d": 4}])}
    source = open_source([write(tmp_path / "a.parquet", columns)])
    (row,) = source.rows(["a", "c"])
    assert row.to_dict(["a", "c"]) == {"a": 1, "c": {"d": 4}}
    assert values_of(str(tmp_path)) == [{"a": 1, "a.b": 2, "": 3, "c": {"d": 4}}]


def test_parquet_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]), path)
    assert error_of(str(path)) == (f"more than one column has the name x: {path}", "rename all but one of them")


def test_parquet_field_of_a_struct_that_stands_twice_is_refused(tmp_path: Path) -> None:
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    path = write(tmp_path / "a.parquet", {"s": pa.ListArray.from_arrays([0, 1], twice)})
    assert error_of(path) == (f"more than one field of s has the name x: {path}", "rename all but one of them")


def test_parquet_unknown_column_is_an_error_at_once(tmp_path: Path) -> None:
    source = open_source([write(tmp_path / "a.parquet", {"text": ["a"]})])
    with pytest.raises(InputError, match=r"^no such column: txt$") as caught:
        source.rows(["txt"])
    assert caught.value.hint == "did you mean 'text'?"


def test_parquet_file_that_would_unpack_without_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_file, "_MIN_INFLATED_BYTES", 1 << 20)
    text = pa.table({"text": ["a" * (1 << 20)] * 64})
    path = write(tmp_path / "bomb.parquet", text, compression="zstd", use_dictionary=False)
    num_bytes = Path(path).stat().st_size
    assert error_of(path) == (
        f"a row group unpacks to 0.1 GiB from a file of {num_bytes} bytes: {path}",
        "write the file again with smaller row groups",
    )
    assert values_of(write(tmp_path / "fine.parquet", {"n": [0] * 1000})) == [{"n": 0}] * 1000


def test_parquet_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    text = pa.array([f"{number:08}" * 256 for number in range(30_000)])
    pq.write_table(pa.table({"text": text}), path, row_group_size=30_000, use_dictionary=False)
    num_bytes = text.nbytes
    del text
    before = pa.total_allocated_bytes()
    source = open_source([str(path)])
    peak = max(pa.total_allocated_bytes() - before for _ in source.rows(["text"]))
    assert peak < num_bytes / 4
    assert source.num_rows == 30_000
