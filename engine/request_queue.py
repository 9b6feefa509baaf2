"""Who is served next among the waiting. One class a policy; the scheduler knows only these verbs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, Protocol

from infer.engine.sequence import SequenceStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infer.engine.sequence import Sequence


class RequestQueue(Protocol):
    """Waiting sequences in the order in which they are to be served."""

    def add(self, sequence: Sequence) -> None:
        """Take one in that arrived later than all others."""

    def put_back(self, sequence: Sequence) -> None:
        """Take in a preempted sequence, or a forked one without a seat, at the place of its arrival.

        One that was swapped out goes before those of its class that were not: it holds host memory.
        """

    def remove(self, sequence: Sequence) -> None: ...

    def __iter__(self) -> Iterator[Sequence]: ...

    def __len__(self) -> int: ...


class FCFSQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._sequences: deque[Sequence] = deque()

    def add(self, sequence: Sequence) -> None:
        self._sequences.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        # Near the front: ahead of it are only those that were preempted, too, or passed over.
        order = _order(sequence)
        place = next((i for i, other in enumerate(self._sequences) if _order(other) > order), None)
        if place is None:
            self._sequences.append(sequence)
        else:
            self._sequences.insert(place, sequence)

    def remove(self, sequence: Sequence) -> None:
        if self._sequences[0] is sequence:
            self._sequences.popleft()
        else:
            self._sequences.remove(sequence)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)


def _order(sequence: Sequence) -> tuple[bool, int, int]:
    return sequence.status is not SequenceStatus.SWAPPED, sequence.arrival, sequence.branch_index


class PriorityQueue:
    """Smaller `Request.priority` first, and first come, first served among equals."""

    def __init__(self) -> None:
        self._queues: dict[int, FCFSQueue] = {}
        self._priorities: list[int] = []
        """Ascending; of the queues that are not empty."""
        self._len = 0

    def add(self, sequence: Sequence) -> None:
        self._queue_of(sequence).add(sequence)
        self._len += 1

    def put_back(self, sequence: Sequence) -> None:
        self._queue_of(sequence).put_back(sequence)
        self._len += 1

    def remove(self, sequence: Sequence) -> None:
        priority = sequence.request.priority
        queue = self._queues[priority]
        queue.remove(sequence)
        self._len -= 1
        if not len(queue):
            del self._queues[priority]
            del self._priorities[bisect_left(self._priorities, priority)]

    def __iter__(self) -> Iterator[Sequence]:
        for priority in self._priorities:
            yield from self._queues[priority]

    def __len__(self) -> int:
        return self._len

    def _queue_of(self, sequence: Sequence) -> FCFSQueue:
        priority = sequence.request.priority
        if priority not in self._queues:
            self._queues[priority] = FCFSQueue()
            insort(self._priorities, priority)
        return self._queues[priority]
