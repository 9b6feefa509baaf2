"""Seconds that a forward pass spends in kernels, by kind of work. For `infer bench`: it costs some time itself.

Two seams see every kernel, whatever modules the network is made of: operators of torch come through the dispatcher, by
name, and ours say themselves what they are (`infer.kernels.operators`). What an operator of ours calls is part of it.
On a GPU events on the stream are the clock, so that nothing waits for the device but the end of a phase.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from infer.kernels.operators import Work, observed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

PROFILED_PHASES = ("execute", "sample")
"""In the others nothing is computed by kernels."""


class KernelKey(NamedTuple):
    phase: str
    work: Work
    operator: str


class _Clock(Protocol):
    """Measures one stretch of work after the other."""

    def start(self) -> Any: ...

    def stop(self, key: KernelKey, started: Any) -> None: ...

    def settle(self) -> None:
        """Book what is still under way."""


class KernelProfile:
    """Give `watch` to `PhaseTimer.watched`; `seconds` is filled meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[KernelKey, float] = {}
        self._clock: _Clock = _EventClock(self.seconds) if device.type == "cuda" else _WallClock(self.seconds)
        self._phase = ""
        self._depth = 0

    def watch(self, phase: str) -> AbstractContextManager[object]:
        return self._profiled(phase) if phase in PROFILED_PHASES else nullcontext()

    @contextmanager
    def operator(self, name: str, work: Work) -> Iterator[None]:
        """See `infer.kernels.operators.Observer`."""
        self._depth += 1
        started = self._clock.start() if self._depth == 1 else None
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._clock.stop(KernelKey(self._phase, work, name), started)

    def by_work(self, phase: str) -> dict[Work, float]:
        """Seconds of a phase by kind of work; every kind is there."""
        sums = dict.fromkeys(Work, 0.0)
        for key, seconds in self.seconds.items():
            if key.phase == phase:
                sums[key.work] += seconds
        return sums

    @property
    def is_inside(self) -> bool:
        """Whether an operator is under way."""
        return self._depth > 0

    @contextmanager
    def _profiled(self, phase: str) -> Iterator[None]:
        self._phase = phase
        with observed(self), _TorchOperators(self):
            try:
                yield
            finally:
                self._clock.settle()


class _TorchOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the profile of every operator of torch."""

    def __init__(self, profile: KernelProfile) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._profile = profile

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A view computes nothing.
        if self._profile.is_inside or func.is_view:
            return func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        with self._profile.operator(name, work_of(name)):
            return func(*args, **(kwargs or {}))


def work_of(name: str) -> Work:
    """What an operator of torch does, by its name without a namespace: `addmm`, `_linear_pointwise`."""
    if "scaled_dot_product" in name or "flash_attention" in name:
        return Work.ATTENTION
    is_product = name.endswith(("mm", "mv")) or "linear" in name or "matmul" in name
    return Work.GEMM if is_product else Work.OTHER


class _WallClock:
    """Of a device whose operators return when they are done."""

    def __init__(self, seconds: dict[KernelKey, float]) -> None:
        self._seconds = seconds

    def start(self) -> float:
        return time.perf_counter()

    def stop(self, key: KernelKey, started: float) -> None:
        self._seconds[key] = self._seconds.get(key, 0.0) + time.perf_counter() - started

    def settle(self) -> None:
        pass


class _EventClock:
    """Of a GPU: what lies between two events on the stream. Where the device waits for the host, that is in it, too."""

    def __init__(self, seconds: dict[KernelKey, float]) -> None:
        self._seconds = seconds
        self._pending: list[tuple[KernelKey, torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def stop(self, key: KernelKey, started: torch.cuda.Event) -> None:
        self._pending.append((key, started, self.start()))

    def settle(self) -> None:
        if self._pending:
            self._pending[-1][2].synchronize()
        for key, started, stopped in self._pending:
            self._seconds[key] = self._seconds.get(key, 0.0) + started.elapsed_time(stopped) / 1e3
        self._pending.clear()
