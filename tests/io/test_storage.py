"""What the file system refuses, and what is left behind: nothing."""

from __future__ import annotations

import errno
import hashlib
import resource
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from publishing import publish_no_input

from infer.io.errors import StorageError
from infer.io.storage import NewFile, rename

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """The file system takes no more than `num_bytes` a file."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
@pytest.mark.parametrize("num_rows", [10, 30_000])
def test_output_that_does_not_fit_is_a_storage_error(tmp_path: Path, name: str, num_rows: int) -> None:
    (tmp_path / name).write_text("old")
    with (
        largest_file(100),
        pytest.raises(StorageError) as caught,
    ):
        publish_no_input(tmp_path / name, num_rows, overwrite=True)
    assert str(caught.value).startswith(f"cannot write {tmp_path}/.out-0.")
    assert str(caught.value).endswith(": file too large")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "old")]


def test_new_file_is_never_another_ones(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(StorageError, match=f"^cannot create {path}: file exists$"):
        NewFile(path)
    assert path.read_text() == "old"


def test_new_file_that_was_discarded_takes_no_more(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "a")
    file.write(b"12")
    file.discard()
    assert file.write(b"345") == 3
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_new_file_holds_what_was_written_once_committed(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "a")
    file.write(b"12")
    file.write(b"3")
    assert file.tell() == 3
    file.commit()
    assert (tmp_path / "a").read_bytes() == b"123"


@pytest.mark.parametrize("replace", [True, False])
def test_rename_that_fails_names_the_target_and_its_cause(tmp_path: Path, replace: bool) -> None:
    with pytest.raises(StorageError, match=f"^cannot write {tmp_path}/b: no such file or directory$") as caught:
        rename(tmp_path / "a", tmp_path / "b", replace=replace)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOENT


def test_new_file_takes_patches_of_what_was_written(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "a")
    file.write(b"123456")
    file.patch(2, b"xy")
    file.write(b"78")
    assert file.tell() == 8
    assert file.hexdigest() == hashlib.sha256(b"12345678").hexdigest()
    file.commit()
    assert (tmp_path / "a").read_bytes() == b"12xy5678"
