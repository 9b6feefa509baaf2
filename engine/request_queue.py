"""Who is served next among the waiting. One class a policy; the scheduler knows only these four verbs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infer.engine.sequence import Sequence


class RequestQueue(Protocol):
    """Waiting sequences in the order in which they are to be served."""

    def add(self, sequence: Sequence) -> None: ...

    def put_back(self, sequence: Sequence) -> None:
        """Return a preempted sequence: it has been served before and goes ahead of the others."""

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
        self._sequences.appendleft(sequence)

    def remove(self, sequence: Sequence) -> None:
        if self._sequences[0] is sequence:
            self._sequences.popleft()
        else:
            self._sequences.remove(sequence)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)
