"""How fast a run is going now, and when it will be done."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from infer.cli.run_snapshot import RunSnapshot


class Throughput:
    """Made of the snapshots that a view has pulled.

    Token rates are over the last `window_seconds`, or since the previous snapshot where those come more seldom. The
    time left is from the mean since the first one: rows finish in waves as large as the batch, and a window shorter
    than a wave would make it jump. Work is counted in generated tokens, so that rows which are nearly done count nearly
    whole; a row that is not done is taken to become as long as those that are.
    """

    def __init__(self, first: RunSnapshot, window_seconds: float = 10.0) -> None:
        self._first = self._last = _sample(first)
        self._rows_total = first.rows_total
        self._window_seconds = window_seconds
        self._recent = deque([self._first])

    def add(self, snapshot: RunSnapshot) -> None:
        self._last = _sample(snapshot)
        self._rows_total = snapshot.rows_total
        self._recent.append(self._last)
        while len(self._recent) > 2 and self._last.seconds - self._recent[1].seconds >= self._window_seconds:
            self._recent.popleft()

    @property
    def prompt_tokens_per_second(self) -> float:
        return self._per_second(self._last.prompt_tokens - self._recent[0].prompt_tokens)

    @property
    def completion_tokens_per_second(self) -> float:
        return self._per_second(self._last.completion_tokens - self._recent[0].completion_tokens)

    @property
    def seconds_left(self) -> float | None:
        """None before the first row is done, or without knowing how many there are."""
        first, last = self._first, self._last
        rows = last.rows_done - first.rows_done
        if self._rows_total is None or rows <= 0:
            return None
        done, left = float(rows), float(self._rows_total - last.rows_done)
        if last.completion_tokens_done:
            done = max(last.completion_tokens - first.completion_tokens, last.completion_tokens_done)
            left = left * last.completion_tokens_done / rows - (done - last.completion_tokens_done)
        return (last.seconds - first.seconds) * max(0.0, left) / done

    def _per_second(self, tokens: int) -> float:
        seconds = self._last.seconds - self._recent[0].seconds
        return tokens / seconds if seconds > 0 else 0.0


class _Sample(NamedTuple):
    """What is kept of a snapshot: without its block states, which are most of its bytes."""

    seconds: float
    rows_done: int
    prompt_tokens: int
    completion_tokens: int
    completion_tokens_done: int


def _sample(snapshot: RunSnapshot) -> _Sample:
    stats = snapshot.stats
    return _Sample(
        snapshot.seconds,
        snapshot.rows_done,
        stats.prompt_tokens_total,
        stats.completion_tokens_total,
        snapshot.completion_tokens_done,
    )
