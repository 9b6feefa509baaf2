"""From what was asked for to the files to read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from infer.io.errors import InputError
from infer.io.paths import FileFormat, input_files


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def touch(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def found(*paths: str) -> list[str]:
    return [str(file.path) for file in input_files(paths)]


def error_of(*paths: str) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        input_files(paths)
    return str(caught.value), caught.value.hint


def test_input_files_keeps_the_order_given() -> None:
    touch("b.jsonl", "a.jsonl", "c/2.jsonl", "c/1.jsonl")
    assert found("b.jsonl", "c", "a.jsonl", "b.jsonl") == ["b.jsonl", "c/1.jsonl", "c/2.jsonl", "a.jsonl", "b.jsonl"]


def test_input_files_takes_of_a_directory_what_is_data() -> None:
    touch(
        "d/b.parquet",
        "d/a/x.parquet",
        "d/README.md",
        "d/_SUCCESS.parquet",
        "d/.c.parquet",
        "d/_infer/s.parquet",
        "d/o.infer/s.parquet",
    )
    assert found("d") == ["d/a/x.parquet", "d/b.parquet"]


def test_input_files_expands_patterns() -> None:
    touch("d/2.jsonl", "d/1.ndjson", "d/e/3.json-lines", "d/_4.jsonl", "d/.5.jsonl")
    assert found("d/*.*json*") == ["d/1.ndjson", "d/2.jsonl"]
    assert found("d/**/*.json-lines") == ["d/e/3.json-lines"]
    assert found(f"{Path.cwd()}/d/e*") == [f"{Path.cwd()}/d/e/3.json-lines"]


def test_input_files_takes_a_name_that_looks_like_a_pattern_literally() -> None:
    touch("data[1].jsonl", "data1.jsonl")
    assert found("data[1].jsonl") == ["data[1].jsonl"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json-lines", "A.JSONL", "a.jsonl.gz", "a.ndjson.zst", "-"])
def test_input_files_knows_jsonl_by_its_names(name: str) -> None:
    touch(name)
    assert [file.format for file in input_files([name])] == [FileFormat.JSONL]


def test_input_files_reads_partition_keys_from_directories() -> None:
    touch("d/year=2024/lang=a%2Fb/x.parquet", "d/year=__HIVE_DEFAULT_PARTITION__/lang=de/x.parquet")
    keys = [{"year": "2024", "lang": "a/b"}, {"year": None, "lang": "de"}]
    assert [file.partition for file in input_files(["d"])] == keys
    assert [file.partition for file in input_files(["d/*/*/x.parquet"])] == keys
    assert [file.partition for file in input_files(["d/year*"])] == keys
    # What stands before the data set does not belong to it.
    assert [file.partition for file in input_files(["d/year=2024"])] == [{"lang": "a/b"}]
    assert [file.partition for file in input_files(["d/year=2024/lang=a%2Fb/x.parquet"])] == [{}]


def test_input_files_takes_a_file_once_that_a_pattern_finds_by_several_ways() -> None:
    touch("d/1.jsonl", "d/e/2.jsonl", "d/e/f/3.jsonl")
    Path("d/e/up").symlink_to(Path.cwd() / "d")
    Path("d/same.jsonl").symlink_to("1.jsonl")
    assert found("d/**/*.jsonl") == ["d/1.jsonl", "d/e/2.jsonl", "d/e/f/3.jsonl", "d/same.jsonl"]
    assert sorted(found("d/**")) == ["d/1.jsonl", "d/e/2.jsonl", "d/e/f/3.jsonl", "d/same.jsonl"]
    assert found("d") == ["d/1.jsonl", "d/e/2.jsonl", "d/e/f/3.jsonl", "d/same.jsonl"]


def test_input_files_leaves_no_file_of_a_directory_out_because_it_cannot_be_read() -> None:
    touch("d/1.jsonl")
    Path("d/2.jsonl").symlink_to("nowhere.jsonl")
    assert error_of("d")[0] == "a link to a file that is not there: d/2.jsonl"
    Path("d/2.jsonl").unlink()
    Path("d/2.jsonl").symlink_to("2.jsonl")
    assert error_of("d")[0] == "a link to a file that is not there: d/2.jsonl", "it leads to itself"
    Path("d/2.jsonl").unlink()
    os.mkfifo("d/2.jsonl")
    assert error_of("d")[0] == "no regular file: d/2.jsonl"


def test_input_files_refuses_a_directory_that_it_may_not_look_into(monkeypatch: pytest.MonkeyPatch) -> None:
    touch("d/1.jsonl", "d/closed/2.jsonl")
    scandir = os.scandir

    def refuses(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuses)
    assert error_of("d")[0] == "cannot read d/closed: permission denied"


def test_input_files_refuses_what_is_not_there() -> None:
    touch("reviews.parquet")
    Path("empty").mkdir()
    formats = "formats: .parquet, and .jsonl .ndjson .json-lines also with .gz or .zst"
    assert error_of("reviews.parqet") == ("no such file: reviews.parqet", "did you mean 'reviews.parquet'?")
    assert error_of("nowhere/x.parquet") == ("no such file: nowhere/x.parquet", "")
    assert error_of("*.jsonl") == ("no file matches: *.jsonl", "")
    assert error_of("empty") == ("no input files in directory: empty", formats)


def test_input_files_refuses_what_is_no_file_and_names_that_cannot_be(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "dangling.jsonl").symlink_to("nowhere.jsonl")
    long = "x" * 300 + ".jsonl"
    assert error_of(str(tmp_path / "pipe.jsonl"))[0] == f"no regular file: {tmp_path / 'pipe.jsonl'}"
    assert error_of(str(tmp_path / "dangling.jsonl")) == (
        f"a link to a file that is not there: {tmp_path / 'dangling.jsonl'}",
        "",
    )
    assert error_of(long)[0] == f"cannot read {long}: file name too long"


def test_input_files_refuses_other_formats_and_mixtures() -> None:
    touch("a.csv", "a.parquet.gz", "a.parquet", "b.jsonl")
    formats = "formats: .parquet, and .jsonl .ndjson .json-lines also with .gz or .zst"
    assert error_of("a.csv") == ("unknown input format: a.csv", formats)
    assert error_of("a.parquet.gz") == ("unknown input format: a.parquet.gz", formats)
    assert error_of("a.parquet", "b.jsonl")[0] == "the inputs are of more than one format: a.parquet and b.jsonl"
    assert error_of("-", "-")[0] == "standard input can be read only once: - -"
