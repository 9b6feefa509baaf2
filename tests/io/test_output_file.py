"""The output appears whole or not at all, and holds what was written."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from publishing import NO_INPUT, RESULTS, convert, publish_no_input, publish_rows

from infer.io.errors import OutputExistsError, OutputNameError, StorageError
from infer.io.output import open_output
from infer.io.row import Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.reliability


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def error_of(path: Path, *, overwrite: bool = False, inputs: list[str | Path] | None = None) -> tuple[str, str]:
    with pytest.raises((OutputExistsError, OutputNameError)) as caught:
        check(path, inputs or [], overwrite=overwrite)
    return str(caught.value), caught.value.hint


def check(path: Path, inputs: list[str | Path], *, overwrite: bool) -> None:
    output = open_output(path)
    output.check_inputs(inputs)
    output.check(overwrite=overwrite)


def test_output_has_fixed_types_though_the_first_rows_are_null(tmp_path: Path) -> None:
    publish_no_input(tmp_path / "out.parquet", 20_000)
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.schema.types == [pa.string(), pa.int32(), pa.int64()]
    assert written.column("tokens").null_count == 20_000


def test_output_row_of_a_bad_line_has_null_in_every_kept_column(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('oops\n{"n": 1, "t": ["x"]}\n[]\n{"n": 2}\n')
    convert([str(source)], tmp_path / "out.parquet", at_once=2)
    expected = [
        {"n": None, "t": None, "response": "response 0", "tokens": None, "_row": 0},
        {"n": 1, "t": ["x"], "response": "response 1", "tokens": None, "_row": 1},
        {"n": None, "t": None, "response": "response 2", "tokens": None, "_row": 2},
        {"n": 2, "t": None, "response": "response 3", "tokens": None, "_row": 3},
    ]
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == expected
    convert([str(source)], tmp_path / "out.jsonl")
    assert lines_of(tmp_path / "out.jsonl") == expected


def test_output_line_keeps_the_values_of_its_input_line(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"b": [1, "x"], "a": 123456789012345678901}\n{"a": {"k": [null]}, "b": "\\u2028"}\n')
    convert([str(source)], tmp_path / "out.jsonl", keep=["a", "b"], prefix="r_")
    assert (tmp_path / "out.jsonl").read_text("utf-8") == (
        '{"a":123456789012345678901,"b":[1,"x"],"r_response":"response 0","r_tokens":null,"r__row":0}\n'
        '{"a":{"k":[null]},"b":"\u2028","r_response":"response 1","r_tokens":null,"r__row":1}\n'
    )


def test_output_line_of_a_parquet_row_holds_json(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(
        pa.table(
            {"t": pa.array([1], pa.timestamp("ns")), "d": pa.array(["1.5"]).cast(pa.decimal128(3, 1)), "b": [b"\0"]}
        ),
        source,
    )
    convert([str(source)], tmp_path / "out.jsonl")
    assert lines_of(tmp_path / "out.jsonl") == [
        {
            "t": "1970-01-01T00:00:00.000000001",
            "d": "1.5",
            "b": "AA==",
            "response": "response 0",
            "tokens": None,
            "_row": 0,
        }
    ]


def test_output_of_no_rows_is_a_readable_file(tmp_path: Path) -> None:
    for name in ("out.parquet", "out.jsonl"):
        publish_no_input(tmp_path / name, 0)
    assert pq.read_table(tmp_path / "out.parquet").schema == RESULTS
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_output_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    assert error_of(path) == (f"the output exists: {path}", "replace it with --overwrite")
    assert path.read_text() == "old"


def test_output_is_replaced_when_asked_for_and_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    rows = iter(lambda: Row(0, None), None)

    def watched() -> Iterator[Row]:
        for row in rows:
            assert path.read_text() == "old"
            yield row

    publish_rows(path, watched(), 1, NO_INPUT, overwrite=True)
    assert lines_of(path) == [{"response": "response 0", "tokens": None, "_row": 0}]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
def test_output_that_appears_meanwhile_is_left_alone(tmp_path: Path, name: str) -> None:
    def rows() -> Iterator[Row]:
        (tmp_path / name).write_text("precious")
        yield from (Row(index, None) for index in range(3))

    with pytest.raises(OutputExistsError) as caught:
        publish_rows(tmp_path / name, rows(), 3, NO_INPUT)
    assert str(caught.value) == f"the output has appeared while the run went on: {tmp_path / name}"
    assert caught.value.hint.startswith("all rows are saved: move it away, or add --overwrite")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "precious")]


@pytest.mark.parametrize("name", [b"o\xff.parquet", b"o\xff.jsonl"])
def test_output_may_have_a_name_that_is_not_unicode(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    publish_no_input(path, 3)
    assert path.exists()


def test_output_name_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    for name in ("x" * 300 + ".jsonl", "loop.jsonl"):
        with pytest.raises(StorageError, match="cannot write"):
            publish_no_input(tmp_path / name, 1)


def test_output_never_replaces_an_input(tmp_path: Path) -> None:
    path = tmp_path / "data" / "in.jsonl"
    path.parent.mkdir()
    path.write_text('{"a": 1}\n')
    (tmp_path / "soft.jsonl").symlink_to(path)
    (tmp_path / "hard.jsonl").hardlink_to(path)
    message = "the output is one of the inputs: "
    for output in [
        path,
        tmp_path / "soft.jsonl",
        tmp_path / "hard.jsonl",
        tmp_path / "data" / ".." / "data" / "in.jsonl",
    ]:
        for given in [str(path), str(path.parent), f"{path.parent}/*.jsonl"]:
            assert error_of(output, overwrite=True, inputs=["-", given])[0].startswith(message)
    assert path.read_text() == '{"a": 1}\n'


def test_output_replaces_the_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "real" / "file.jsonl")
    publish_no_input(tmp_path / "out.jsonl", 1)
    assert (tmp_path / "out.jsonl").is_symlink()
    assert len(lines_of(tmp_path / "real" / "file.jsonl")) == 1


def test_output_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.jsonl")
    message, _ = error_of(tmp_path / "f.jsonl", overwrite=True)
    assert message == f"the output is there and no regular file: {tmp_path / 'f.jsonl'}"


@pytest.mark.parametrize("name", ["out.csv", "out", "out.jsonl.gz"])
def test_output_of_an_unknown_format_is_refused(tmp_path: Path, name: str) -> None:
    assert error_of(tmp_path / name) == (
        f"unknown output format: {name}",
        "formats: .parquet .jsonl .ndjson .json-lines; or a directory, whose name ends in /",
    )


def test_output_in_no_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        publish_no_input(tmp_path / "no" / "out.parquet", 1)
    assert str(caught.value) == f"cannot create {tmp_path}/no/.out-0.parquet: no such file or directory"
    assert caught.value.hint == "create the directory first"


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_output_of_a_run_that_failed_never_appears(tmp_path: Path, name: str, error: BaseException) -> None:
    def rows() -> Iterator[Row]:
        yield from (Row(index, None) for index in range(10_000))
        raise error

    (tmp_path / name).write_text("old")
    with pytest.raises(type(error)):
        publish_rows(tmp_path / name, rows(), 10_001, NO_INPUT, overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "old")]


def test_output_is_on_the_disk_before_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, bool]] = []
    path = tmp_path / "out.parquet"
    fsync = os.fsync

    def record_fsync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        calls.append((kind, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_fsync)
    publish_no_input(path, 1)
    assert calls == [("file", False), ("directory", True)]


def test_output_is_readable_by_whom_the_umask_says(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        publish_no_input(tmp_path / "out.parquet", 1)
    finally:
        os.umask(old)
    assert (tmp_path / "out.parquet").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["out.parquet.infer", "out.infer/"])
def test_output_is_not_called_like_what_is_saved_of_a_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputNameError, match=r"^a name in \.infer is that of what is saved of a run: out"):
        open_output(f"{tmp_path}/{name}")
