"""A directory of parts appears whole or not at all, and replaces nothing but one of its kind."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from publishing import NO_INPUT, RESULTS, publish_no_input, result_batches

from infer.io import output_directory, storage
from infer.io.errors import OutputExistsError, StorageError
from infer.io.output import open_output
from infer.io.output_directory import OutputDirectory
from infer.io.output_file import OutputFile
from infer.io.publish import join_rows
from infer.io.row import Row

if TYPE_CHECKING:
    from collections.abc import Iterator


def rows(num_rows: int) -> Iterator[Row]:
    return (Row(index, None) for index in range(num_rows))


def write(output: OutputDirectory, num_rows: int, *, at_once: int = 50, run_id: str = "0") -> Path:
    """Returns where it was written."""
    aside = output.aside(run_id)
    output.write(aside, join_rows(rows(num_rows), result_batches(num_rows, at_once)), NO_INPUT, {})
    return aside


def write_and_publish(output: OutputDirectory, num_rows: int, *, at_once: int = 50, overwrite: bool = False) -> None:
    output.publish(write(output, num_rows, at_once=at_once), overwrite=overwrite)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def rows_of(path: Path) -> list[int]:
    return [row for part in sorted(path.glob("part-*")) for row in pq.read_table(part)["_row"].to_pylist()]


def refusal(output: OutputDirectory, *, overwrite: bool) -> tuple[str, str]:
    with pytest.raises(OutputExistsError) as caught:
        output.check(overwrite=overwrite)
    return str(caught.value), caught.value.hint


@pytest.fixture
def output(tmp_path: Path) -> OutputDirectory:
    return OutputDirectory(tmp_path / "out", max_part_rows=100)


def test_name_decides_between_file_and_directory(tmp_path: Path) -> None:
    (tmp_path / "there.parquet").mkdir()
    assert isinstance(open_output(f"{tmp_path}/out/"), OutputDirectory)
    assert isinstance(open_output(f"{tmp_path}/out.parquet/"), OutputDirectory)
    assert isinstance(open_output(tmp_path / "there.parquet"), OutputDirectory)
    assert isinstance(open_output(f"{tmp_path}/out.parquet"), OutputFile)


@pytest.mark.parametrize("num_rows", [1, 100, 101, 250])
def test_parts_hold_a_bounded_number_of_rows(output: OutputDirectory, num_rows: int) -> None:
    write_and_publish(output, num_rows)
    parts = [f"part-{number:05}.parquet" for number in range(-(-num_rows // 100))]
    assert names(output.path) == ["_SUCCESS", *parts]
    assert [path.name for path in output.files()] == parts
    assert all(pq.read_metadata(path).num_rows <= 100 for path in output.files())
    assert rows_of(output.path) == list(range(num_rows))
    assert (output.path / "_SUCCESS").stat().st_size == 0


def test_parts_hold_a_bounded_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_directory, "MAX_PART_BYTES", 10_000)
    output = OutputDirectory(tmp_path / "out")
    # A row group is written at 8,192 rows, and is larger than that.
    write_and_publish(output, 20_000, at_once=1_024)
    assert [pq.read_metadata(path).num_rows for path in output.files()] == [8_192, 8_192, 3_616]
    assert rows_of(output.path) == list(range(20_000))


def test_each_part_has_the_digest_that_is_reported(output: OutputDirectory) -> None:
    from infer.io.seal import check_seal

    aside = output.aside("0")
    files = output.write(aside, join_rows(rows(150), result_batches(150)), NO_INPUT, {})
    parts = sorted(aside.glob("part-*"))
    assert [(each.num_bytes, each.sha256) for each in files] == [
        (part.stat().st_size, check_seal(part)[0]) for part in parts
    ]
    assert len(files) == 2


def test_no_rows_give_one_part_with_the_columns(output: OutputDirectory) -> None:
    write_and_publish(output, 0)
    assert names(output.path) == ["_SUCCESS", "part-00000.parquet"]
    assert pq.read_schema(output.path / "part-00000.parquet").equals(RESULTS)


def test_everything_is_on_the_disk_before_it_appears(output: OutputDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, bool]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        calls.append((f"{name}/" if is_directory else name, output.path.exists()))
        fsync(descriptor)

    parent = f"{output.path.parent.name}/"
    monkeypatch.setattr(storage.os, "fsync", note)
    write_and_publish(output, 101)
    assert calls == [
        (parent, False),
        ("part-00000.parquet", False),
        ("part-00001.parquet", False),
        ("_SUCCESS", False),
        (".out-0/", False),
        (parent, True),
        # What was replaced is gone for good, too.
        (parent, True),
    ]


def test_output_may_be_absent_or_an_empty_directory(output: OutputDirectory) -> None:
    output.check(overwrite=False)
    output.path.mkdir()
    output.check(overwrite=False)
    write_and_publish(output, 3)
    assert rows_of(output.path) == [0, 1, 2]
    assert names(output.path.parent) == ["out"]


def test_directory_of_parts_is_replaced_only_on_demand(output: OutputDirectory) -> None:
    write_and_publish(output, 250)
    assert refusal(output, overwrite=False) == (f"the output exists: {output.path}", "replace it with --overwrite")
    output.check(overwrite=True)
    write_and_publish(output, 3, overwrite=True)
    assert rows_of(output.path) == [0, 1, 2]
    assert names(output.path) == ["_SUCCESS", "part-00000.parquet"]
    assert names(output.path.parent) == ["out"]


@pytest.mark.parametrize(
    "stranger", ["notes.txt", "part-0.parquet", "part-00000.parquet.bak", ".hidden", "sub", "part-00000.jsonl"]
)
def test_directory_with_anything_else_in_it_is_never_replaced(output: OutputDirectory, stranger: str) -> None:
    write_and_publish(output, 3)
    (output.path / stranger).mkdir() if stranger == "sub" else (output.path / stranger).write_text("precious")
    assert refusal(output, overwrite=True) == (
        f"the output holds what no run has written: {output.path / stranger}",
        "only a directory of parts is replaced: choose another name",
    )
    assert refusal(output, overwrite=False)[0] == f"the output exists: {output.path}"


def test_output_that_is_no_directory_is_refused(output: OutputDirectory) -> None:
    output.path.write_text("precious")
    for overwrite in (False, True):
        assert refusal(output, overwrite=overwrite) == (
            f"the output is there and no directory: {output.path}",
            "choose another name",
        )


def test_mount_point_is_refused() -> None:
    # It could not be renamed.
    for overwrite in (False, True):
        assert refusal(OutputDirectory(Path("/proc")), overwrite=overwrite) == (
            "the output is a mount point: /proc",
            "choose a directory below it",
        )


def test_output_never_holds_an_input(tmp_path: Path, output: OutputDirectory) -> None:
    write_and_publish(output, 3)
    part = output.path / "part-00000.parquet"
    (tmp_path / "link.parquet").symlink_to(part)
    (tmp_path / "other.parquet").write_bytes(part.read_bytes())
    for given in (str(part), f"{output.path}", f"{output.path}/*.parquet", str(tmp_path / "link.parquet")):
        with pytest.raises(OutputExistsError) as caught:
            output.check_inputs(["-", str(tmp_path / "other.parquet"), given])
        assert str(caught.value) == f"the output holds one of the inputs: {output.path}"
    output.check_inputs(["-", str(tmp_path / "other.parquet")])
    OutputDirectory(tmp_path / "ou").check_inputs([str(part)])


def test_directory_that_appears_meanwhile_is_left_alone(output: OutputDirectory) -> None:
    aside = write(output, 3)
    output.path.mkdir()
    (output.path / "precious").write_text("x")
    with pytest.raises(OutputExistsError, match=f"^the output has appeared while the run went on: {output.path}$"):
        output.publish(aside, overwrite=False)
    assert names(output.path) == ["precious"]
    assert rows_of(aside) == [0, 1, 2]


def test_directory_that_was_given_something_meanwhile_is_not_replaced(output: OutputDirectory) -> None:
    write_and_publish(output, 3)
    aside = write(output, 4)
    (output.path / "precious").write_text("x")
    with pytest.raises(OutputExistsError, match=r"^the output holds what no run has written: "):
        output.publish(aside, overwrite=True)
    assert (output.path / "precious").read_text() == "x"
    assert rows_of(output.path) == [0, 1, 2]


def test_output_whose_last_file_is_missing_has_no_files(output: OutputDirectory) -> None:
    assert output.files() == []
    write_and_publish(output, 3)
    (output.path / "_SUCCESS").unlink()
    assert output.files() == []


def test_aside_has_a_hidden_name_that_is_not_too_long(tmp_path: Path) -> None:
    assert OutputDirectory(tmp_path / "out").aside("1f2e") == tmp_path / ".out-1f2e"
    long = OutputDirectory(tmp_path / ("x" * 255)).aside("1f" * 8)
    assert len(long.name) < 100
    assert long.parent == tmp_path


def test_what_was_left_aside_is_removed(output: OutputDirectory) -> None:
    write(output, 250)
    write(output, 3, run_id="1")
    output.discard("0")
    # Nothing of another run.
    assert names(output.path.parent) == [".out-1"]
    output.discard("0")


def test_old_directory_comes_back_where_the_new_one_did_not_take_its_place(
    output: OutputDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_and_publish(output, 3)
    aside = write(output, 4)
    rename, calls = os.rename, []

    def die_at_the_second(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(storage.os, "rename", die_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            output.publish(aside, overwrite=True)
    assert not output.path.exists()
    output.discard("0")
    assert rows_of(output.path) == [0, 1, 2]
    assert names(output.path.parent) == ["out"]


def test_old_directory_goes_where_the_new_one_did_take_its_place(
    output: OutputDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_and_publish(output, 3)
    aside = write(output, 4)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(output_directory.storage, "remove_directory", die)
        with pytest.raises(KeyboardInterrupt):
            output.publish(aside, overwrite=True)
    assert names(output.path.parent) == [".out-0-old", "out"]
    output.discard("0")
    assert rows_of(output.path) == [0, 1, 2, 3]
    assert names(output.path.parent) == ["out"]


def test_output_of_no_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no such file or directory$") as caught:
        publish_no_input(tmp_path / "no" / "out.parquet", 1)
    with pytest.raises(StorageError, match=r"^cannot create .*/no/.out-0: no such file or directory$") as caught:
        write(OutputDirectory(tmp_path / "no" / "out"), 1)
    assert caught.value.hint == "create the directory first"
