"""One run at a time: the lock of a state directory, and who has it."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import orjson
import psutil

from infer.io.errors import LockedError
from infer.io.storage import close, open_locked, read_bytes, rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUM_LOOKS = 20
_SECONDS_BETWEEN_LOOKS = 0.02
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that works, or worked, on a run."""

    pid: int
    host: str
    boot_id: str
    """Of the machine, since it was started; empty where the system has none."""
    start: float
    """When the process began, in seconds since 1970: another process may get its number."""
    argv: tuple[str, ...]

    @classmethod
    def this_process(cls, argv: Sequence[str]) -> Holder:
        # A byte of the command line that is no UTF-8 is none of JSON either.
        shown = tuple(each.encode(errors="backslashreplace").decode() for each in argv)
        return cls(os.getpid(), socket.gethostname(), boot_id(), psutil.Process().create_time(), shown)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, as far as this machine can tell."""
        if (self.host, self.boot_id) != (socket.gethostname(), boot_id()):
            return False
        try:
            process = psutil.Process(self.pid)
            # One that has ended keeps its number until its parent asks, which in a container may be never.
            has_ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            return not has_ended and abs(process.create_time() - self.start) < 1.0
        except psutil.Error:
            return False

    def describe(self) -> str:
        began = datetime.fromtimestamp(self.start, UTC).isoformat(sep=" ", timespec="seconds")
        return f"process {self.pid} on {self.host}, since {began}"


class RunLock:
    """Held until `release`, or until the process ends, however it ends. The file stays.

    Raises:
        LockedError: another process has it; names it.
        StorageError: the file system refused, or has no locks.
    """

    def __init__(self, path: Path, holder: Holder) -> None:
        descriptor = open_locked(path)
        if descriptor is None:
            other = _wait_for_holder(path)
            raise LockedError(
                f"another run is writing this output: {'unknown process' if other is None else other.describe()}",
                "wait for it, or stop it: what it has saved is kept",
            )
        self._descriptor: int | None = descriptor
        try:
            rewrite(descriptor, path, orjson.dumps(asdict(holder)) + b"\n")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            close(descriptor)


def _wait_for_holder(path: Path) -> Holder | None:
    """Who has the lock; for an instant after it was taken, an earlier one still stands there."""
    for _ in range(_NUM_LOOKS):
        holder = read_holder(path)
        if holder is not None and holder.is_alive:
            break
        sleep(_SECONDS_BETWEEN_LOOKS)
    return holder


def read_holder(path: Path) -> Holder | None:
    """Who wrote the lock file last; None where that cannot be read."""
    try:
        values = orjson.loads(read_bytes(path) or b"")
        return Holder(**{**values, "argv": tuple(values["argv"])})
    except (ValueError, TypeError, KeyError):
        return None


@cache
def boot_id() -> str:
    """A name of this machine since it was started; empty where the system gives none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
