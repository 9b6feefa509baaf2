"""The only module that opens files for writing, syncs, renames and removes: the seam for fault injection.

Whatever the file system refuses becomes a StorageError that names the path and says what would help.
"""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from infer.io.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_BUFFER_BYTES = 1 << 20
_HINTS = {
    errno.ENOSPC: "free some space or choose another place",
    errno.EDQUOT: "free some space or choose another place",
    errno.EROFS: "choose a place that can be written to",
    errno.EACCES: "choose a place that can be written to",
    errno.EPERM: "choose a place that can be written to",
    errno.ENOENT: "create the directory first",
    errno.ENOTDIR: "create the directory first",
    errno.EIO: "the device is failing; choose another place",
}


class NewFile:
    """A file under construction. It exists from the first byte on; what it holds counts only after `commit`."""

    closed = False
    """pyarrow asks every file for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _refusals("create", path):
            # 0o666 leaves the permissions to the umask, as for any other output; exclusive, so that it is ours alone.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._file: BinaryIO | None = os.fdopen(descriptor, "wb", buffering=_BUFFER_BYTES)
        self._num_bytes = 0

    def write(self, data: bytes) -> int:
        """Ignored after `discard`: a writer's finaliser may still want to close its format."""
        if self._file is not None:
            with _refusals("write", self.path):
                self._file.write(data)
            self._num_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self._num_bytes

    def flush(self) -> None:
        """Nothing: what has to be on the disk is settled once, in `commit`."""

    def commit(self) -> None:
        """Returns when every byte has reached the disk."""
        assert self._file is not None, f"{self.path} has been discarded"
        with _refusals("write", self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def discard(self) -> None:
        """Removes the file, whatever state it is in."""
        file, self._file = self._file, None
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        if file is not None:
            # Closing flushes: on a full disk that fails again, which no longer matters.
            with suppress(OSError):
                file.close()


def rename(source: Path, target: Path, *, replace: bool) -> None:
    """Puts `source` in the place of `target` at once and for good. Both lie in one directory.

    Raises:
        FileExistsError: there is a target, and it may not be replaced.
        StorageError: the file system refused.
    """
    if not replace:
        try:
            # A second name is refused where the name is taken; a rename is not.
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:
            # A file system without second names.
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
            replace = True
    with _refusals("write", target):
        if replace:
            source.replace(target)
        else:
            source.unlink()
        descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def spool(pieces: Iterable[bytes]) -> int:
    """A descriptor of a nameless temporary file that holds `pieces`. Once it is closed, nothing is left of them."""
    directory = tempfile.gettempdir()
    with _refusals("copy standard input to", directory), tempfile.TemporaryFile(dir=directory) as copy:
        copy.writelines(pieces)
        copy.flush()
        return os.dup(copy.fileno())


@contextmanager
def _refusals(what: str, path: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refused(what, path, error) from error


def refused(what: str, path: object, error: OSError) -> StorageError:
    """What `error` says, with the name and what would help."""
    reason = (error.strerror or str(error)).lower()
    return StorageError(f"cannot {what} {path}: {reason}", _HINTS.get(error.errno or 0, ""))
