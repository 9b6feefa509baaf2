"""A run told in lines, for a log: each ends with a newline, none has a carriage return or an escape code."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Self

from tqdm import tqdm

from infer.cli.figures import count, percent, rate
from infer.cli.terminal import safe
from infer.cli.throughput import Throughput

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from rich.console import Console

    from infer.cli.run_snapshot import RunSnapshot

_FIRST_INTERVAL, _LAST_INTERVAL = 5.0, 60.0
_GROWTH = 1.5


class LineView:
    """Speaks soon at first and less often as the run goes on; the last line tells where a finished run ended."""

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
        self._interval = _FIRST_INTERVAL
        self._next_line_at = console.get_time() + self._interval

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an exception the counters may be halfway through a step, and its message matters more.
        if exc_type is None:
            self._print_progress()

    def update(self) -> None:
        now = self._console.get_time()
        if now >= self._next_line_at:
            self._print_progress()
            self._interval = min(_LAST_INTERVAL, self._interval * _GROWTH)
            self._next_line_at = now + self._interval

    def message(self, text: str) -> None:
        self._print(safe(text))

    def _print_progress(self) -> None:
        snapshot = self._snapshot()
        self._throughput.add(snapshot)
        self._print("  ".join(_parts(snapshot, self._throughput)))

    def _print(self, line: str) -> None:
        now = self._console.get_datetime().isoformat(sep=" ", timespec="seconds")
        with self._undisturbed():
            self._console.out(f"{now}  {line}", highlight=False)


def _parts(snapshot: RunSnapshot, throughput: Throughput) -> list[str]:
    stats, total = snapshot.stats, snapshot.rows_total
    if total is None:
        parts = [f"{count(snapshot.rows_done)} rows"]
    else:
        parts = [f"{count(snapshot.rows_done)}/{count(total)} rows", percent(snapshot.rows_done, total)]
    if snapshot.rows_resumed:
        parts[0] += f" ({count(snapshot.rows_resumed)} resumed)"
    if snapshot.rows_saved is not None:
        parts.append(f"{count(snapshot.rows_saved)} saved")
    parts += [
        f"{count(snapshot.rows_failed)} failed",
        f"prompt {rate(throughput.prompt_tokens_per_second)}",
        f"generated {rate(throughput.completion_tokens_per_second)}",
        f"running {count(stats.num_requests_running)}",
        f"waiting {count(stats.num_requests_waiting + stats.num_requests_swapped)}",
    ]
    seconds_left = throughput.seconds_left
    if seconds_left is not None:
        parts.append(f"eta {tqdm.format_interval(seconds_left)}")
    return parts
