"""HostStaging: the arrays of a step on their way to the device, without the host waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNMENT = 64
_FIRST_SIZE = 1 << 20


class HostStaging:
    """To a GPU by way of pinned memory, which a copy reads after the call has returned: so there are two buffers, one
    of the step that is being made ready and one of the step before, which the device may still be reading. On a CPU an
    array is where it has to be.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[_PinnedBuffer] = []
        self._current = 0

    def begin_step(self) -> None:
        """What was staged two steps ago is written over."""
        if self._device.type != "cuda":
            return
        if not self._buffers:
            self._buffers = [_PinnedBuffer(), _PinnedBuffer()]
        self._current = 1 - self._current
        self._buffers[self._current].reuse()

    def end_step(self) -> None:
        """All of the step is on its way."""
        if self._buffers:
            self._buffers[self._current].close()

    def __call__(self, array: NDArray[Any]) -> torch.Tensor:
        if not self._buffers:
            return torch.from_numpy(array).to(self._device)
        return self._buffers[self._current].take(array).to(self._device, non_blocking=True)


class _PinnedBuffer:
    def __init__(self) -> None:
        self._bytes = torch.empty(_FIRST_SIZE, dtype=torch.uint8, pin_memory=True)
        self._end = 0
        self._wanted = 0
        self._is_read = torch.cuda.Event()  # type: ignore[no-untyped-call]
        """Recorded behind the last copy that reads it."""

    def reuse(self) -> None:
        self._is_read.synchronize()
        if self._wanted > len(self._bytes):
            self._bytes = torch.empty(2 * self._wanted, dtype=torch.uint8, pin_memory=True)
        self._end = self._wanted = 0

    def close(self) -> None:
        self._is_read.record()

    def take(self, array: NDArray[Any]) -> torch.Tensor:
        """A copy of `array` in pinned memory; of its own where the buffer is full, which then grows."""
        source: torch.Tensor = torch.from_numpy(array)
        num_bytes = source.numel() * source.element_size()
        self._wanted += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._end + num_bytes > len(self._bytes):
            return source.pin_memory()
        pinned = self._bytes[self._end : self._end + num_bytes].view(source.dtype).view(source.shape)
        pinned.copy_(source)
        self._end = self._wanted
        return pinned
