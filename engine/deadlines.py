"""How long requests have been running: `row_timeout`, counted from the step that first computed something of them."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Deadlines:
    """The limit is the same for all, so whoever began first is over it first."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        """None is no limit."""
        self.seconds = seconds
        self._clock = clock
        self._begun: dict[int, float] = {}
        """By request, the earliest first."""

    def begin(self, request_ids: Iterable[int]) -> None:
        """These are being computed; those that were already go on counting."""
        if self.seconds is None:
            return
        now = self._clock()
        for request_id in request_ids:
            self._begun.setdefault(request_id, now)

    def end(self, request_id: int) -> None:
        self._begun.pop(request_id, None)

    def restart(self) -> None:
        """All begin again, through no fault of theirs."""
        self._begun.clear()

    def expired(self) -> list[int]:
        """Requests that are over the limit."""
        if self.seconds is None or not self._begun:
            return []
        last = self._clock() - self.seconds
        return [request_id for request_id, _ in takewhile(lambda item: item[1] <= last, self._begun.items())]
