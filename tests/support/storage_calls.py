"""Takes the place of `os` and `fcntl` in `infer.io.storage`: counts the calls, makes one of them fail, tells of all.

A call is known by its number: the same job makes the same calls in the same order.
"""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infer.io import storage

if TYPE_CHECKING:
    from collections.abc import Callable

WRITES = frozenset({"write", "pwrite", "fsync", "fdatasync", "ftruncate", "link", "rename", "mkdir"})
"""What cannot fail without the run failing."""

COUNTED = WRITES | {"open", "pread", "read", "lseek", "close", "unlink", "rmdir", "listdir", "fstat", "stat", "flock"}
SHORT = frozenset({"write", "pwrite", "read", "pread"})
"""What may do less than it was asked for."""

ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EACCES")
CRASHES = ("crash before", "crash after")
KINDS = (*ERRORS, "short", *CRASHES)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with the call `number`, the first being 0."""

    number: int
    kind: str
    stays: bool = False
    """Whether all later calls that write fail as well."""


class StorageCalls:
    """`on_call` is told each call when it is done: its name, its arguments, and what it returned or raised.

    Without `syncs`, nothing waits for the disk: for tests in which the machine does not go down.
    """

    def __init__(
        self,
        fault: Fault | None = None,
        on_call: Callable[[str, tuple[Any, ...], Any], None] | None = None,
        *,
        syncs: bool = True,
    ) -> None:
        self.num_calls = 0
        self._fault = fault
        self._on_call = on_call
        self._syncs = syncs

    def install(self) -> None:
        """For good, in this process."""
        storage.os = _Counted(storage.os, self)
        storage.fcntl = _Counted(storage.fcntl, self)

    def call(self, name: str, real: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number, self.num_calls = self.num_calls, self.num_calls + 1
        fault, kind = self._fault, None
        if fault is not None and (number == fault.number or (fault.stays and number > fault.number and name in WRITES)):
            kind = fault.kind
        if kind in ERRORS:
            code = getattr(errno, kind)
            raise OSError(code, os.strerror(code))
        if kind == "crash before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            result = self._do(name, real, args, kwargs, is_short=kind == "short")
        except OSError as error:
            result = error
        self._tell(name, args, result)
        if kind == "crash after":
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(result, OSError):
            raise result
        return result

    def _do(self, name: str, real: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, *, is_short: bool) -> Any:
        if not self._syncs and name in ("fsync", "fdatasync"):
            return None
        return _short(name, real, args) if is_short and name in SHORT else real(*args, **kwargs)

    def _tell(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        if self._on_call is not None:
            self._on_call(name, args, result)


class _Counted:
    """A module of which some functions are counted."""

    def __init__(self, module: Any, calls: StorageCalls) -> None:
        self._module = module
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._module, name)
        if name not in COUNTED:
            return real
        return lambda *args, **kwargs: self._calls.call(name, real, args, kwargs)


def _short(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Half of what was asked for, and a byte at least."""
    if name in ("write", "pwrite"):
        descriptor, data, *rest = args
        return real(descriptor, data[: max(1, len(data) // 2)], *rest)
    descriptor, num_bytes, *rest = args
    return real(descriptor, max(1, num_bytes // 2) if num_bytes < 1 << 20 else 100, *rest)
