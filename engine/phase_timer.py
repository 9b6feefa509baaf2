"""Where the time goes, by phase. Always on: a phase costs about a microsecond."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Watch = Callable[[str], AbstractContextManager[object]]

_NOTHING = nullcontext()


class PhaseTimer:
    """Wall seconds by phase. A phase inside another is its own, and none of the other's, so that all add up."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        """When the innermost phase began, or went on."""
        self._watch: Watch | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._book()
        self._open.append(name)
        try:
            with _NOTHING if self._watch is None else self._watch(name):
                yield
        finally:
            self._book()
            self._open.pop()

    @contextmanager
    def watched(self, watch: Watch) -> Iterator[None]:
        """Until the block ends, what `watch` makes of its name is entered with every phase."""
        assert self._watch is None, "the phases are watched already"
        self._watch = watch
        try:
            yield
        finally:
            self._watch = None

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to see each kernel by itself: nothing may be replayed as one then."""
        return self._watch is not None

    def _book(self) -> None:
        now = self._clock()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
