"""One run at a time, and the others are told which: however the one before it ended."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from infer.io import lock, storage
from infer.io.errors import LockedError, StorageError
from infer.io.lock import Holder, RunLock, boot_id, read_holder
from infer.io.storage import open_locked

HOLDS = """
import sys
from pathlib import Path
from infer.io.lock import Holder, RunLock

lock = RunLock(Path(sys.argv[1]), Holder.this_process(sys.argv))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def holder() -> Holder:
    return Holder.this_process(["infer", "run"])


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_holder_is_this_process(holder: Holder) -> None:
    assert (holder.pid, holder.host, holder.argv) == (os.getpid(), socket.gethostname(), ("infer", "run"))
    assert holder.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert holder.is_alive


def test_holder_of_the_same_number_is_another_process_if_it_began_at_another_time(holder: Holder) -> None:
    assert replace(holder, start=holder.start + 0.5).is_alive
    assert not replace(holder, start=holder.start - 1.5).is_alive
    assert not replace(holder, start=holder.start + 1.5).is_alive


def test_holder_that_has_ended_is_not_alive_although_its_parent_never_asked(holder: Holder) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        child = replace(holder, pid=process.pid, start=psutil.Process(process.pid).create_time())
        assert child.is_alive
        process.kill()
        # Its end is awaited, and it is left to be a zombie.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not child.is_alive


def test_holder_of_another_machine_or_before_a_reboot_is_not_alive(holder: Holder) -> None:
    assert not replace(holder, host="elsewhere").is_alive
    assert not replace(holder, boot_id="earlier").is_alive


def test_holder_that_has_ended_is_not_alive(holder: Holder) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert not replace(holder, pid=process.pid).is_alive


def test_holder_keeps_arguments_that_are_no_unicode(path: Path) -> None:
    holder = Holder.this_process(["infer", os.fsdecode(b"\xff.jsonl"), "é"])
    assert holder.argv == ("infer", "\\udcff.jsonl", "é")
    RunLock(path, holder).release()
    assert read_holder(path) == holder


def test_lock_names_its_holder(path: Path, holder: Holder) -> None:
    held = RunLock(path, replace(holder, pid=7, host="box", start=0.0))
    with pytest.raises(LockedError) as caught:
        RunLock(path, holder)
    assert str(caught.value) == (
        "another run is writing this output: process 7 on box, since 1970-01-01 00:00:00+00:00"
    )
    assert caught.value.hint == "wait for it, or stop it: what it has saved is kept"
    held.release()
    RunLock(path, holder).release()
    assert read_holder(path) == holder


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"pid": 1}', b'{"argv": 7}', b'{"argv": [], "more": 1}']
)
def test_lock_whose_holder_cannot_be_read_is_still_held(path: Path, holder: Holder, content: bytes) -> None:
    held = RunLock(path, holder)
    path.write_bytes(content)
    assert read_holder(path) is None
    with pytest.raises(LockedError, match=r"writing this output: unknown process$"):
        RunLock(path, holder)
    held.release()


def test_lock_file_that_nobody_holds_is_taken_whatever_it_says(path: Path, holder: Holder) -> None:
    path.write_bytes(b"x" * 10_000)
    held = RunLock(path, holder)
    assert read_holder(path) == holder
    held.release()
    assert path.exists()


def test_lock_that_nobody_wrote_has_no_holder(path: Path) -> None:
    assert read_holder(path) is None


def test_lock_can_be_released_twice(path: Path, holder: Holder) -> None:
    held = RunLock(path, holder)
    held.release()
    with path.open() as other:
        held.release()
        # The number may belong to another file by now.
        assert os.fstat(other.fileno()).st_size > 0


def test_lock_is_given_back_where_its_holder_cannot_be_written(
    path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    before = num_descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(storage.os, "write", refuse)
        with pytest.raises(StorageError, match=f"^cannot write {path}: no space left on device$"):
            RunLock(path, holder)
    assert num_descriptors() == before
    RunLock(path, holder).release()


@pytest.mark.parametrize("end", ["close", "kill"])
def test_lock_ends_with_its_process(path: Path, holder: Holder, end: str) -> None:
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(LockedError, match=f": process {process.pid} on "):
                RunLock(path, holder)
            found = read_holder(path)
            assert found is not None
            assert found.is_alive
            if end == "kill":
                process.kill()
        finally:
            process.communicate()
    assert not found.is_alive
    RunLock(path, holder).release()


@pytest.mark.parametrize("successor", ["none", "another"])
def test_lock_of_a_file_that_was_removed_meanwhile_is_none(
    path: Path, monkeypatch: pytest.MonkeyPatch, successor: str
) -> None:
    flock = fcntl.flock
    calls = []

    def remove_first(descriptor: int, operation: int) -> None:
        # The other one has removed it between our opening and our locking it.
        if not calls:
            path.unlink()
            if successor == "another":
                path.write_bytes(b"new")
        calls.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(storage.fcntl, "flock", remove_first)
    before = num_descriptors()
    descriptor = open_locked(path)
    assert descriptor is not None
    assert len(calls) == 2
    assert os.path.samestat(os.fstat(descriptor), path.stat())
    assert num_descriptors() == before + 1
    assert open_locked(path) is None
    assert num_descriptors() == before + 1
    os.close(descriptor)


def test_lock_is_made_though_the_one_before_removes_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.infer" / "lock"
    open_file, calls = os.open, []

    def remove_first(target: Any, *arguments: Any) -> int:
        if target == path and not calls:
            calls.append(target)
            path.parent.rmdir()
        return open_file(target, *arguments)

    monkeypatch.setattr(storage.os, "open", remove_first)
    descriptor = open_locked(path)
    assert descriptor is not None
    assert calls
    assert path.exists()
    os.close(descriptor)


def test_lock_in_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no such file or directory$") as caught:
        open_locked(tmp_path / "no" / "out.infer" / "lock")
    assert caught.value.hint == "create the directory first"
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match=f"^cannot lock {tmp_path}/dangling/lock: no such file or directory$"):
        open_locked(tmp_path / "dangling" / "lock")


def test_lock_that_the_file_system_does_not_have_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    before = num_descriptors()
    monkeypatch.setattr(storage.fcntl, "flock", refuse)
    with pytest.raises(StorageError, match=f"^cannot lock {path}: no locks available$") as caught:
        open_locked(path)
    assert "--state-dir" in caught.value.hint
    assert num_descriptors() == before


def test_boot_id_is_empty_where_the_system_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lock, "_BOOT_ID", tmp_path / "no")
    boot_id.cache_clear()
    try:
        assert boot_id() == ""
    finally:
        boot_id.cache_clear()


def test_holder_that_has_not_written_its_name_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    held = RunLock(path, Holder.this_process([]))
    name = path.read_bytes()
    path.write_bytes(b"")
    monkeypatch.setattr(lock, "sleep", lambda _: path.write_bytes(name))
    with pytest.raises(LockedError, match=f": process {os.getpid()} on "):
        RunLock(path, Holder.this_process([]))
    held.release()
