"""Whether an input is what it was, whatever its file's times and number say."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from infer.io import input_content
from infer.io.errors import InputError
from infer.io.input_content import InputContent
from infer.io.reader import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from infer.io.input_content import InputBytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": 1}\n')
    return path


def file_of(path: Path) -> InputBytes:
    return (path.name, partial(path.open, "rb"))


def digest_of(data: bytes) -> str:
    return f"{len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def test_digests_are_those_of_the_files_in_their_order(tmp_path: Path) -> None:
    contents = [b"x" * 3_000, b"", b"y"]
    for number, data in enumerate(contents):
        (tmp_path / f"{number}").write_bytes(data)
    files = [file_of(tmp_path / f"{number}") for number in range(3)]
    assert InputContent(files).digests == [digest_of(data) for data in contents]
    assert InputContent(files[::-1]).digests == [digest_of(data) for data in contents[::-1]]
    assert digest_of(contents[0]).startswith("3,000 bytes")


@pytest.mark.parametrize("data", [b'{"a": 2}\n', b'{"a": 1}', b'{"a": 1}\n\n', b""])
def test_change_is_found_and_named(tmp_path: Path, path: Path, data: bytes) -> None:
    (tmp_path / "other").write_bytes(b"1")
    content = InputContent([file_of(tmp_path / "other"), file_of(path)])
    content.check_unchanged()
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"^the input has changed while the run went on: in.jsonl$") as caught:
        content.check_unchanged()
    assert "--restart" in caught.value.hint


def test_change_that_leaves_size_and_time_is_found(path: Path) -> None:
    content = InputContent([file_of(path)])
    before = path.stat()
    path.write_bytes(b'{"a": 2}\n')
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError):
        content.check_unchanged()


def test_file_that_was_replaced_by_another_is_found(tmp_path: Path, path: Path) -> None:
    content = InputContent([file_of(path)])
    other = tmp_path / "other"
    other.write_bytes(b'{"a": 2}\n')
    other.replace(path)
    with pytest.raises(InputError):
        content.check_unchanged()


def test_file_that_was_touched_or_copied_is_the_same(tmp_path: Path, path: Path) -> None:
    content = InputContent([file_of(path)])
    os.utime(path, (1, 1))
    content.check_unchanged()
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    content.check_unchanged()


def test_file_that_was_not_touched_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = InputContent([file_of(path)])
    monkeypatch.setattr(input_content, "_digest_all", lambda _: pytest.fail("the input was read again"))
    content.check_unchanged()


def test_file_that_is_gone_is_an_error(path: Path) -> None:
    content = InputContent([file_of(path)])
    path.unlink()
    for check in (content.check_unchanged, lambda: InputContent([file_of(path)])):
        with pytest.raises(InputError, match=r"^cannot read in.jsonl: no such file or directory$"):
            check()


def test_copy_of_standard_input_has_a_digest_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'{"a": 1}\n{"a": 2}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    content = InputContent(open_source(["-"]).contents())
    assert content.digests == [digest_of(data)]
    content.check_unchanged()


def test_compressed_input_counts_as_it_lies_on_the_disk(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert InputContent(open_source([str(path)]).contents()).digests == [digest_of(path.read_bytes())]
