"""What the file system refuses, and what is left behind: nothing."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from publishing import publish_no_input

from infer.io import storage
from infer.io.errors import StorageError
from infer.io.storage import (
    AppendFile,
    NewFile,
    list_names,
    make_directory,
    read_bytes,
    remove,
    remove_directory,
    rename,
    rename_directory,
    rewrite,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


def test_new_file_writes_what_is_large_before_the_end(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "a")
    file.write(b"x" * (1 << 20))
    assert (tmp_path / "a").stat().st_size == 1 << 20
    file.write(b"y")
    assert (tmp_path / "a").stat().st_size == 1 << 20
    file.commit()
    assert (tmp_path / "a").stat().st_size == (1 << 20) + 1


def test_new_file_takes_patches_of_nothing_else(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "a")
    file.write(b"123")
    with pytest.raises(AssertionError, match=r"\(2, 2, 3\)"):
        file.patch(2, b"xy")
    file.discard()
    with pytest.raises(AssertionError, match="has been discarded"):
        file.patch(0, b"x")
    with pytest.raises(AssertionError, match="has been discarded"):
        file.commit()


def test_new_file_takes_patches_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(
        storage.os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, bytes(data[:2]), offset)
    )
    file = NewFile(tmp_path / "a")
    file.write(b"12345678")
    file.patch(1, b"abcde")
    file.commit()
    assert (tmp_path / "a").read_bytes() == b"1abcde78"


def test_append_file_grows_and_can_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12")
    file = AppendFile(path)
    file.append(b"34")
    # At once, for whoever comes after a death.
    assert path.read_bytes() == b"1234"
    file.truncate(1)
    file.append(b"5")
    file.sync()
    file.close()
    assert path.read_bytes() == b"15"


def test_append_file_closes_its_own_descriptor_only(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "a")
    file.close()
    with (tmp_path / "b").open("w") as other:
        file.close()
        with pytest.raises(StorageError, match=r"/a: it is closed$"):
            file.append(b"1")
        assert os.fstat(other.fileno()).st_size == 0


def test_append_file_takes_nothing_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AppendFile(tmp_path / "a")
    with monkeypatch.context() as patched:
        patched.setattr(storage.os, "write", refusing(errno.EIO))
        with pytest.raises(StorageError, match="input/output error"):
            file.append(b"1")
    for _ in range(2):
        with pytest.raises(StorageError, match=f"^cannot write {tmp_path}/a: it failed before$"):
            file.append(b"1")
        file.sync()
    file.close()
    assert (tmp_path / "a").read_bytes() == b""


def test_append_file_takes_nothing_after_it_could_not_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AppendFile(tmp_path / "a")
    file.append(b"1")
    file.sync()
    file.append(b"2")
    with monkeypatch.context() as patched:
        patched.setattr(storage.os, "fdatasync", refusing(errno.EIO))
        with pytest.raises(StorageError, match="input/output error"):
            file.sync()
    with pytest.raises(StorageError, match=f"^cannot write {tmp_path}/a: it failed before$"):
        file.append(b"3")
    file.close()


@pytest.mark.parametrize(("call", "method"), [("fdatasync", "sync"), ("ftruncate", "truncate")])
def test_append_file_says_what_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, method: str
) -> None:
    file = AppendFile(tmp_path / "a")
    monkeypatch.setattr(storage.os, call, refusing(errno.ENOSPC))
    with pytest.raises(StorageError, match=f"^cannot write {tmp_path}/a: no space left on device$"):
        getattr(file, method)(*[0] * (method == "truncate"))
    file.close()


def refusing(number: int) -> Callable[..., Any]:
    """A system call that fails."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def test_read_bytes_reads_all_or_says_that_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    assert read_bytes(path) is None
    data = b"x" * ((1 << 20) + 1)
    for written in (b"", data):
        path.write_bytes(written)
        assert read_bytes(path) == written
    with pytest.raises(StorageError, match=f"^cannot read {tmp_path}: is a directory$"):
        read_bytes(tmp_path)
    with pytest.raises(StorageError, match=f"^cannot read {path}/b: not a directory$"):
        read_bytes(path / "b")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    monkeypatch.setattr(storage.os, "read", refusing(errno.EIO))
    with pytest.raises(StorageError, match=f"^cannot read {path}: input/output error$"):
        read_bytes(path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_rename_without_replacing_leaves_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    with pytest.raises(FileExistsError):
        rename(tmp_path / "a", tmp_path / "b", replace=False)
    assert [(path.name, path.read_text()) for path in sorted(tmp_path.iterdir())] == [("a", "new"), ("b", "old")]
    rename(tmp_path / "a", tmp_path / "b", replace=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("b", "new")]
    rename(tmp_path / "b", tmp_path / "c", replace=False)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("c", "new")]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_rename_without_replacing_works_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(storage.os, "link", refusing(number))
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for taken in ("b", "dangling"):
        with pytest.raises(FileExistsError):
            rename(tmp_path / "a", tmp_path / taken, replace=False)
    assert (tmp_path / "b").read_text() == "old"
    rename(tmp_path / "a", tmp_path / "c", replace=False)
    assert (tmp_path / "c").read_text() == "new"
    assert not (tmp_path / "a").exists()


def test_rename_reaches_the_disk_with_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_text("new")
    synced: list[str] = []
    monkeypatch.setattr(storage, "sync_directory", lambda path: synced.append(path.name))
    rename(tmp_path / "a", tmp_path / "sub" / "b", replace=True)
    rename(tmp_path / "sub" / "b", tmp_path / "sub" / "c", replace=False)
    rename_directory(tmp_path / "sub", tmp_path / "other")
    make_directory(tmp_path / "other" / "new")
    make_directory(tmp_path / "other" / "new")
    # Also where it was there: who made it may have been killed before its name was safe.
    assert synced == ["sub", "sub", tmp_path.name, "other", "other"]


def test_rename_directory_takes_the_name_of_an_empty_one_only(tmp_path: Path) -> None:
    for name in ("a", "empty", "full"):
        (tmp_path / name).mkdir()
    for name in ("a", "full"):
        (tmp_path / name / "x").touch()
    with pytest.raises(FileExistsError):
        rename_directory(tmp_path / "a", tmp_path / "full")
    rename_directory(tmp_path / "a", tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "full", "x", "x"]
    with pytest.raises(StorageError, match=r"/b: no such file or directory$"):
        rename_directory(tmp_path / "a", tmp_path / "b")


def test_make_directory_needs_the_one_above(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"^cannot create {tmp_path}/a/b: no such file or directory$"):
        make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a")
    assert list_names(tmp_path) == ["a"]
    with pytest.raises(StorageError, match=f"^cannot read {tmp_path}/b: no such file or directory$"):
        list_names(tmp_path / "b")


def test_remove_passes_over_what_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    remove(tmp_path / "a")
    remove(tmp_path / "a")
    assert list_names(tmp_path) == []
    with pytest.raises(StorageError, match=f"^cannot remove {tmp_path}: "):
        remove(tmp_path)


def test_remove_directory_takes_its_files_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "a"
    remove_directory(directory)
    directory.mkdir()
    for name in ("x", "y", "z"):
        (directory / name).touch()
    listdir = os.listdir
    # One of them is gone by the time it is looked at.
    monkeypatch.setattr(storage.os, "listdir", lambda path: ["gone", *listdir(path)])
    remove_directory(directory)
    assert not directory.exists()


def test_remove_directory_has_no_mercy_on_files_only(tmp_path: Path) -> None:
    (tmp_path / "a" / "sub").mkdir(parents=True)
    with pytest.raises(StorageError, match=f"^cannot remove {tmp_path}/a: "):
        remove_directory(tmp_path / "a")
    assert (tmp_path / "a" / "sub").exists()


def test_rewrite_replaces_all_that_an_open_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    descriptor = os.open(path, os.O_RDWR)
    for data in (b"abcd", b"ef"):
        rewrite(descriptor, path, data)
        assert path.read_bytes() == data
    os.close(descriptor)


def test_file_that_was_read_may_fail_to_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(descriptor: int) -> None:
        real_close(descriptor)
        raise OSError(errno.EIO, "failing")

    real_close = os.close
    (tmp_path / "a").write_bytes(b"12")
    with monkeypatch.context() as patches:
        patches.setattr(os, "close", close)
        assert read_bytes(tmp_path / "a") == b"12"
