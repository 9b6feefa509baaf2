"""What a public operator's time counts as, and the one place from which it can be observed.

`@operator(Work.GEMM)` marks a public function. Unobserved, that is one test of a variable a call. An operator that does
several kinds of work in one kernel counts as the one that it exists for: a product with the activation in it is a GEMM.
"""

from __future__ import annotations

import enum
import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

P = ParamSpec("P")
T = TypeVar("T")


class Work(enum.StrEnum):
    """Kinds of work on a device."""

    GEMM = "gemm"
    """Products with weights."""
    ATTENTION = "attention"
    """Queries over keys and values."""
    OTHER = "other"
    """Norms, activations, rotary and token embeddings, stores into the cache, sums."""


class Observer(Protocol):
    """Who wants to know of operators."""

    def operator(self, name: str, work: Work) -> AbstractContextManager[object]:
        """Entered around each call. An operator may call another one."""


OPERATORS: dict[str, Work] = {}
"""Those that are marked, by name."""

_observer: Observer | None = None


def operator(work: Work) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Marks a public operator."""

    def mark(function: Callable[P, T]) -> Callable[P, T]:
        name = function.__name__
        OPERATORS[name] = work

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if _observer is None:
                return function(*args, **kwargs)
            with _observer.operator(name, work):
                return function(*args, **kwargs)

        return call

    return mark


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Until the block ends, every operator tells `observer`."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before
