"""What a file system refuses, as a StorageError that names the path and says what would help."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from infer.io.errors import DataError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_HINTS = {
    errno.ENOSPC: "free some space or choose another place",
    errno.EDQUOT: "free some space or choose another place",
    errno.EROFS: "choose a place that can be written to",
    errno.EACCES: "choose a place that can be written to",
    errno.EPERM: "choose a place that can be written to",
    errno.ENOENT: "create the directory first",
    errno.ENOTDIR: "create the directory first",
    errno.EIO: "the device is failing; choose another place",
    errno.ENOLCK: "this file system has no locks: keep the state elsewhere with --state-dir",
    errno.EOPNOTSUPP: "this file system has no locks: keep the state elsewhere with --state-dir",
}


@contextmanager
def refusals(what: str, path: object) -> Iterator[None]:
    """Turns the OSError of a system call inside into a StorageError; ours pass."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise refused(what, path, error) from error


def refused(what: str, path: object, error: OSError) -> StorageError:
    """What `error` says, with the name and what would help."""
    reason = (error.strerror or str(error)).lower()
    return StorageError(f"cannot {what} {path}: {reason}", _HINTS.get(error.errno or 0, ""))
