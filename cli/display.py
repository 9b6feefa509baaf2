"""What people see while a run goes on: a live view on a terminal, plain lines everywhere else."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol, Self, TextIO, cast

from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from infer.cli.frame import Frame
from infer.cli.progress import LineView
from infer.cli.terminal import SafeStream, can_redraw, safe
from infer.cli.throughput import Throughput

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from rich.console import Console

    from infer.cli.run_snapshot import RunSnapshot

_MIN_SECONDS_BETWEEN_FRAMES = 0.25
_MAX_SHARE = 0.005
"""Of the run's time that drawing may take."""


class RunView(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def update(self) -> None:
        """Call after each step; it looks at the clock, and only now and then at the run."""

    def message(self, text: str) -> None:
        """Print one line that stays."""


def open_view(
    console: Console,
    snapshot: Callable[[], RunSnapshot],
    undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> RunView:
    """`undisturbed` is a stop request's: rich, interrupted, would write what it is writing a second time."""
    # Lines of a log would run through the picture.
    is_logging = logging.getLogger("infer").isEnabledFor(logging.INFO)
    return (
        LiveView(console, snapshot, undisturbed)
        if can_redraw(console) and not is_logging
        else LineView(console, snapshot, undisturbed)
    )


class LiveView:
    """Redraws one picture in place, and takes it away at the end; a report follows.

    Drawn by the caller's own thread, which waits meanwhile. What a frame took, snapshot and slow terminal included,
    sets how long there is no other one, so the share of the run is bounded whatever the size.
    """

    def __init__(
        self,
        console: Console,
        snapshot: Callable[[], RunSnapshot],
        undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._console = console
        self._undisturbed = undisturbed
        self._snapshot = snapshot
        self._throughput = Throughput(snapshot())
        self._next_frame_at = 0.0
        # Standard output stays as it is: data may be going there. What libraries write to standard error while the
        # view stands is printed above it.
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def __enter__(self) -> Self:
        with self._undisturbed():
            self._live.start()
            if isinstance(sys.stderr, FileProxy):
                # It takes libraries' lines above the picture, and would take their escape codes for its own.
                sys.stderr = cast("TextIO", SafeStream(cast("TextIO", sys.stderr)))
        try:
            self._draw()
        except BaseException:
            self._live.stop()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._undisturbed():
            self._live.stop()

    def update(self) -> None:
        if self._console.get_time() >= self._next_frame_at:
            self._draw()

    def message(self, text: str) -> None:
        with self._undisturbed():
            self._console.print(Text(safe(text)))

    def _draw(self) -> None:
        begin = self._console.get_time()
        snapshot = self._snapshot()
        self._throughput.add(snapshot)
        with self._undisturbed():
            self._live.update(Frame(snapshot, self._throughput), refresh=True)
        end = self._console.get_time()
        self._next_frame_at = end + max(_MIN_SECONDS_BETWEEN_FRAMES, (end - begin) / _MAX_SHARE)
