"""Memory in huge pages, where the system has them. In small ones, what is read once a step would miss the pages that a
processor remembers all the time, and each miss walks through the page table."""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_HUGE_PAGE = 2 << 20
_CHUNK_BYTES = 64 * 2**20
_LINE_BYTES = 64


def map_zeros(num_bytes: int) -> memoryview:
    """Memory of its own, which lives as long as what is made of it. It begins with a huge page, if
    it is as large as one."""
    is_large = num_bytes >= _HUGE_PAGE
    memory = mmap.mmap(-1, num_bytes + is_large * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _HUGE_PAGE if is_large else 0
    return memoryview(memory)[begin : begin + num_bytes]


class Arena:
    """Many tensors that are kept for long, one behind the other."""

    def __init__(self) -> None:
        self._memory: memoryview | None = None
        self._end = 0

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous one."""
        copied = self._allocate(tensor.shape, tensor.dtype)
        return copied.copy_(tensor)

    def _allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = -(-math.prod(shape) * dtype.itemsize // _LINE_BYTES) * _LINE_BYTES
        if self._memory is None or self._end + num_bytes > len(self._memory):
            self._memory, self._end = map_zeros(max(num_bytes, _CHUNK_BYTES)), 0
        begin, self._end = self._end, self._end + num_bytes
        count = math.prod(shape)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=begin).view(tuple(shape))
