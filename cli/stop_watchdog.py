"""Ends the process, wherever the main thread is, when a stop takes too long or is asked for again.

The system's handler writes each signal's number into a pipe, also while the main thread is inside a call of a library;
this thread reads it. Files are left as they stand: they are valid at every instant.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from infer.cli.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

MAX_STOP_SECONDS = 4.5
"""From the first signal to the end of the process, at most."""

SAME_REQUEST_SECONDS = 0.25
"""One request may come as several signals: a wrapper hands on the Ctrl-C that the terminal has already sent to all, a
closed terminal and its shell both send SIGHUP, systemd sends SIGHUP behind SIGTERM."""

_BEFORE_EXIT_SECONDS = 1.0
_SECONDS_BETWEEN_LOOKS = 0.05
_STOP = 0
"""No signal has this number."""


class StopWatchdog:
    """To be started and stopped in the main thread."""

    def __init__(
        self,
        *,
        signals: frozenset[int],
        ends_at: float,
        is_committing: Callable[[], bool],
        before_exit: Callable[[], None] | None,
    ) -> None:
        """`ends_at`, by the monotonic clock, counts as a first signal."""
        self._signals = signals
        self._ends_at = ends_at
        self._is_committing = is_committing
        self._before_exit = before_exit
        self._first: int | None = None
        """What came first; `SIGALRM` stands for the time that is up."""
        self._first_at = 0.0
        self._thread = threading.Thread(target=self._watch, name="stop-watchdog", daemon=True)

    def start(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._thread.start()
        self._old_writer = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def stop(self) -> None:
        signal.set_wakeup_fd(self._old_writer)
        os.write(self._writer, bytes([_STOP]))
        self._thread.join()
        os.close(self._writer)
        os.close(self._reader)

    def _watch(self) -> None:
        while True:
            wakes_at = self._ends_at if self._first is None else self._first_at + MAX_STOP_SECONDS
            seconds = min(max(wakes_at - time.monotonic(), _SECONDS_BETWEEN_LOOKS), 3600.0)
            is_readable = select.select([self._reader], [], [], seconds)[0]
            for number in os.read(self._reader, 512) if is_readable else b"":
                if number == _STOP:
                    return
                if number in self._signals:
                    self._hear(number)
            now = time.monotonic()
            if self._first is None:
                if now >= self._ends_at:
                    self._first, self._first_at = signal.SIGALRM, now
            elif now >= self._first_at + MAX_STOP_SECONDS and not self._is_committing():
                self._end(self._first, "stopped in the middle of a step that took too long")

    def _hear(self, number: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, self._first_at = number, now
        elif now >= self._first_at + SAME_REQUEST_SECONDS:
            self._end(number, "stopped at once")

    def _end(self, number: int, message: str) -> NoReturn:
        if self._before_exit is not None:
            # It may write to a disk that does not answer.
            thread = threading.Thread(target=self._before_exit, name="before-exit", daemon=True)
            thread.start()
            thread.join(_BEFORE_EXIT_SECONDS)
        cause = "" if number == signal.SIGALRM else f" by {signal.Signals(number).name}"
        text = f"{message}{cause}\nhint: run the same command again to continue\n"
        _write_to_stderr(_restored_terminal() + text.encode())
        os._exit(ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.STOPPED)


def _restored_terminal() -> bytes:
    """What makes the cursor visible again and leaves the line that a picture ends in."""
    try:
        is_terminal = os.isatty(2) and os.environ.get("TERM", "dumb").lower() not in ("dumb", "unknown", "")
    except OSError:
        return b""
    return b"\x1b[0m\x1b[?25h\r\n" if is_terminal else b""


def _write_to_stderr(text: bytes) -> None:
    # Not by Python's stream: the main thread may hold its lock. Nor where it would wait: a terminal may be paused.
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):
        if select.select([], [2], [], 0.1)[1]:
            os.write(2, text)
