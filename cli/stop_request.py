"""Stopping a run from outside: by a signal, or because its time is up.

    first signal, or the time is up
      |- otherwise              Stopped is raised at once
      |- in graceful()          `requested` says so; Stopped is raised only when the caller has not looked for 3 s
      |- in undisturbed()       Stopped waits for the end of the block
      `- 4.5 s later            the process ends as it stands; in committing() when that block ends
    another signal              the process ends as it stands

Ending a process as it stands is the watchdog's (`stop_watchdog.py`): Python runs signal handlers between two
instructions of the main thread, which may be inside one long call of a library.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from infer.cli.errors import CommandError, InterruptError, StoppedEarlyError
from infer.cli.stop_watchdog import StopWatchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

GRACE_SECONDS = 3.0
"""For a step to end by itself. What is complete has to be saved in the rest of the five seconds."""


@dataclass(frozen=True, slots=True)
class StopCause:
    """Who asked for the stop."""

    name: str
    """Of the signal, or `max-runtime`."""

    @property
    def is_interrupt(self) -> bool:
        """The user at the terminal, who knows."""
        return self.name == "SIGINT"


class Stopped(BaseException):
    """Ends what the main thread is doing. No `Exception`, as nobody may take it for a failure and go on."""

    def __init__(self, cause: StopCause) -> None:
        super().__init__(cause.name)
        self.cause = cause


def stop_error(cause: StopCause, num_rows_saved: int | None = None) -> CommandError:
    """What to tell the user, with its exit code. Without a number, nothing is said about rows."""
    by = "interrupted" if cause.is_interrupt else f"stopped by {cause.name}"
    saved = "" if num_rows_saved is None else f", rows saved: {num_rows_saved:,}"
    error_class = InterruptError if cause.is_interrupt else StoppedEarlyError
    return error_class(f"{by}{saved}", "run the same command again to continue")


class StopRequest:
    """Listens while the block runs, in the main thread; in another one it does nothing: the process is not ours there.

    A signal that the process was started to ignore stays ignored: SIGHUP under nohup, SIGINT behind a shell's `&`.
    Blocks can be nested: the innermost hears.
    """

    def __init__(self, max_runtime: float | None = None, before_exit: Callable[[], None] | None = None) -> None:
        """`max_runtime` is in seconds from the beginning of the block. `before_exit` is called, in another thread than
        the main one and for a second at most, before the process is ended as it stands."""
        self.requested: StopCause | None = None
        self._max_runtime = max_runtime
        self._ends_at = float("inf")
        self._before_exit = before_exit
        self._watchdog: StopWatchdog | None = None
        self._old_handlers: dict[signal.Signals, Any] = {}
        self._is_graceful = False
        self._num_undisturbed = 0
        self._num_committing = 0
        self._is_due = False
        """Stopped is to be raised at the end of an undisturbed block."""
        self._was_raised = False

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            with self.undisturbed():
                self._listen()
        except BaseException:
            self._stop_listening()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._watchdog is None:
            return
        was_requested = self.requested is not None
        self._stop_listening()
        if self.requested is not None and not was_requested and self.requested.name in signal.Signals.__members__:
            # It came too late for this block: it is for whoever listens now.
            signal.raise_signal(signal.Signals[self.requested.name])

    def raise_if_requested(self) -> None:
        """For a place where nothing is half done.

        Raises:
            Stopped: a stop was asked for.
        """
        if self.requested is not None:
            self._was_raised = True
            raise Stopped(self.requested)

    @contextmanager
    def graceful(self) -> Iterator[None]:
        """A block that looks at `requested` often, and ends when it is set. Not to be nested."""
        self._is_graceful = True
        try:
            yield
        finally:
            self._is_graceful = False
            if self._watchdog is not None and self.requested is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """A short block that must not be left in the middle: rich, interrupted, would write a frame a second time."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._num_undisturbed += 1
        try:
            yield
        finally:
            self._num_undisturbed -= 1
            if self._is_due and not self._num_undisturbed:
                self._raise(None)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """An undisturbed block in which completed rows are saved: only another signal ends it, no matter how long it
        takes."""
        self._num_committing += 1
        try:
            with self.undisturbed():
                yield
        finally:
            self._num_committing -= 1

    def _listen(self) -> None:
        if self._max_runtime is not None:
            self._ends_at = time.monotonic() + self._max_runtime
        self._watchdog = StopWatchdog(
            signals=frozenset(STOP_SIGNALS),
            ends_at=self._ends_at,
            is_committing=lambda: self._num_committing > 0,
            before_exit=self._before_exit,
        )
        self._watchdog.start()
        self._replace(signal.SIGALRM, self._on_alarm)
        for number in STOP_SIGNALS:
            # None is a handler that was not set from Python: it could not be put back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._replace(number, self._on_signal)
        if self._max_runtime is not None:
            signal.setitimer(signal.ITIMER_REAL, self._max_runtime)

    def _replace(self, number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
        self._old_handlers[number] = signal.getsignal(number)
        signal.signal(number, handler)

    def _stop_listening(self) -> None:
        self._num_undisturbed += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._watchdog is not None:
            self._watchdog.stop()
            self._watchdog = None
        # Last: from here on, others may raise.
        for number, handler in self._old_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._old_handlers.clear()
        self._num_undisturbed -= 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # The second one is the watchdog's.
        if self.requested is None:
            self._request(StopCause(signal.Signals(number).name), frame)

    def _on_alarm(self, _: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            self._raise(frame)
        elif time.monotonic() >= self._ends_at:
            self._request(StopCause("max-runtime"), frame)

    def _request(self, cause: StopCause, frame: FrameType | None) -> None:
        self.requested = cause
        if self._is_graceful:
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        else:
            self._raise(frame)

    def _raise(self, frame: FrameType | None) -> None:
        """Once: what Stopped unwinds must not be disturbed by another one."""
        assert self.requested is not None
        is_ending = frame is not None and frame.f_code in _ENDS and frame.f_locals.get("self") is self
        if self._num_undisturbed or is_ending:
            self._is_due = True
        elif not self._was_raised:
            self._was_raised = True
            self._is_due = False
            raise Stopped(self.requested)


_ENDS = (StopRequest.__exit__.__code__, StopRequest._stop_listening.__code__)
"""Raised at the first instruction of these, Stopped would keep the old handlers from coming back."""
