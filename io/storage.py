"""The only module that writes, syncs, renames, locks and removes files: the seam for fault injection.

By plain system calls, one at a time, so that each can be counted and made to fail.

Whatever the file system refuses becomes a StorageError that names the path and says what would help.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from infer.io.errors import StorageError
from infer.io.refusals import refusals, refused

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


_BUFFER_BYTES = 1 << 20
_MAX_TRIES = 100


class NewFile:
    """A file under construction. It exists from the first byte on; what it holds counts only after `commit`."""

    closed = False
    """pyarrow asks every file for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer: list[bytes] = []
        self._num_buffered = 0
        self._num_bytes = 0
        self._sha256 = hashlib.sha256()
        with refusals("create", path):
            # 0o666 leaves the permissions to the umask, as for any other output; exclusive, so that it is ours alone.
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes) -> int:
        """Ignored after `discard`: a writer's finaliser may still want to close its format."""
        if self._descriptor is not None:
            data = bytes(data)
            self._sha256.update(data)
            self._buffer.append(data)
            self._num_buffered += len(data)
            self._num_bytes += len(data)
            if self._num_buffered >= _BUFFER_BYTES:
                self._drain()
        return len(data)

    def tell(self) -> int:
        return self._num_bytes

    def flush(self) -> None:
        """Nothing: what has to be on the disk is settled once, in `commit`."""

    def hexdigest(self) -> str:
        """sha256 of all that was written; what `patch` changed counts as it was before."""
        return self._sha256.hexdigest()

    def patch(self, offset: int, data: bytes) -> None:
        """Change bytes that have been written."""
        assert self._descriptor is not None, f"{self.path} has been discarded"
        assert offset + len(data) <= self._num_bytes, (offset, len(data), self._num_bytes)
        self._drain()
        with refusals("write", self.path):
            while data:
                written = os.pwrite(self._descriptor, data, offset)
                data, offset = data[written:], offset + written

    def commit(self) -> None:
        """Returns when every byte has reached the disk."""
        assert self._descriptor is not None, f"{self.path} has been discarded"
        self._drain()
        with refusals("write", self.path):
            os.fsync(self._descriptor)
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def discard(self) -> None:
        """Removes the file, whatever state it is in."""
        descriptor, self._descriptor = self._descriptor, None
        self._buffer = []
        with suppress(OSError):
            os.unlink(self.path)
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def _drain(self) -> None:
        assert self._descriptor is not None
        data, self._buffer, self._num_buffered = b"".join(self._buffer), [], 0
        with refusals("write", self.path):
            _write_all(self._descriptor, data)


class AppendFile:
    """A file that only grows. What was appended survives this process at once, and the machine after `sync`.

    After a failure it takes nothing more: part of what was appended may be there. Where it was `sync` that failed, the
    next one would succeed, whatever the system has given up by then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._has_failed = False
        with refusals("write", path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._is_closed = False

    def append(self, data: bytes) -> None:
        if self._has_failed or self._is_closed:
            raise StorageError(f"cannot write {self.path}: it {'is closed' if self._is_closed else 'failed before'}")
        self._has_failed = True
        with refusals("write", self.path):
            _write_all(self._descriptor, data)
        self._has_failed = False

    def sync(self) -> None:
        had_failed, self._has_failed = self._has_failed, True
        with refusals("write", self.path):
            os.fdatasync(self._descriptor)
        self._has_failed = had_failed

    def truncate(self, num_bytes: int) -> None:
        with refusals("write", self.path):
            os.ftruncate(self._descriptor, num_bytes)
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Once: its number may be another file's afterwards."""
        is_closed, self._is_closed = self._is_closed, True
        if not is_closed:
            with suppress(OSError):
                os.close(self._descriptor)


def read_bytes(path: Path) -> bytes | None:
    """All of a file; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused("read", path, error) from error
    pieces = []
    try:
        with refusals("read", path):
            while piece := os.read(descriptor, _BUFFER_BYTES):
                pieces.append(piece)
    finally:
        close(descriptor)
    return b"".join(pieces)


def rename(source: Path, target: Path, *, replace: bool) -> None:
    """Puts `source` in the place of `target` at once and for good. Both lie on one file system.

    Raises:
        FileExistsError: there is a target, and it may not be replaced.
        StorageError: the file system refused.
    """
    is_linked = not replace and _link(source, target)
    with refusals("write", target):
        if is_linked:
            os.unlink(source)
        else:
            os.rename(source, target)
    sync_directory(target.parent)


def _link(source: Path, target: Path) -> bool:
    """Give a file a second name: refused where the name is taken, which a rename is not. False: it cannot have one."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise refused("write", target, error) from error
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        return False
    return True


def rename_directory(source: Path, target: Path) -> None:
    """Gives a directory its name, which must be free or that of an empty one.

    Raises:
        FileExistsError: there is one that is not empty.
        StorageError: the file system refused.
    """
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise refused("write", target, error) from error
    sync_directory(target.parent)


def make_directory(path: Path) -> None:
    """Returns when its name has reached the disk, also where it was there: who made it may have been killed since."""
    try:
        os.mkdir(path, 0o777)
    except FileExistsError:
        pass
    except OSError as error:
        raise refused("create", path, error) from error
    sync_directory(path.parent)


def list_names(path: Path) -> list[str]:
    """What a directory holds, in order."""
    with refusals("read", path):
        return sorted(os.listdir(path))


def remove(path: Path) -> None:
    """Nothing happens where it is gone."""
    with refusals("remove", path), suppress(FileNotFoundError):
        os.unlink(path)


def remove_directory(path: Path) -> None:
    """A directory of files, and these first; nothing happens where it is gone."""
    with refusals("remove", path), suppress(FileNotFoundError):
        for name in os.listdir(path):
            with suppress(FileNotFoundError):
                os.unlink(path / name)
        os.rmdir(path)


def sync_directory(path: Path) -> None:
    """Returns when the names in it have reached the disk."""
    with refusals("write", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            close(descriptor)


def close(descriptor: int) -> None:
    """Of what has been read or synced: there is nothing left that could go wrong."""
    with suppress(OSError):
        os.close(descriptor)


def open_locked(path: Path) -> int | None:
    """A descriptor of `path`, which is made where it is missing, and its directory too, under an exclusive lock that
    ends with the process. None where another process has it.
    """
    for num_left in reversed(range(_MAX_TRIES)):
        make_directory(path.parent)
        with refusals("lock", path):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                # Whoever had it before may have removed the directory. It is made again, but not for ever: it may be
                # a link that leads nowhere.
                if num_left:
                    continue
                raise
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                close(descriptor)
                return None
            except BaseException:
                close(descriptor)
                raise
            # Whoever had it before may have removed the file: then this is the lock of nothing.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
            close(descriptor)
    raise StorageError(f"cannot lock {path}: it was removed {_MAX_TRIES} times meanwhile")


def rewrite(descriptor: int, path: Path, data: bytes) -> None:
    """Replace what an open file holds; not at once, so for what nobody depends on."""
    with refusals("write", path):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        _write_all(descriptor, data)


def spool(pieces: Iterable[bytes]) -> int:
    """A descriptor of a nameless temporary file that holds `pieces`. Once it is closed, nothing is left of them."""
    directory = tempfile.gettempdir()
    with refusals("copy standard input to", directory), tempfile.TemporaryFile(dir=directory) as copy:
        copy.writelines(pieces)
        copy.flush()
        return os.dup(copy.fileno())


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
