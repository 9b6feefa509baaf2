"""PageReserve: memory that the system has really provided, got ready for the KV cache while a model is being read.

What a process allocates is a promise; each page is provided at its first touch. On a virtual machine whose host had not
backed it either, that went at 0.4 GB/s instead of 21, in the middle of the first steps. Reading a model leaves a core
idle, so pages are touched then, and moved into the cache when its size is known.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from infer.engine.memory import available_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

_CPU = torch.device("cpu")

_MOST_BYTES = 1 << 30
_MOST_CACHES = 4
"""As many bytes as the weights have, so many times: a small model is read too fast for more to be touched."""

_SHARE_OF_AVAILABLE = 16
"""No more than one part of so many."""

_HUGE_PAGE = 2 << 20
_STEP = 16 * _HUGE_PAGE
"""What is touched before it is asked whether to go on."""

_POPULATE_WRITE = 23
_MAY_MOVE, _FIXED = 1, 2
"""Linux: MADV_POPULATE_WRITE (since 5.14) and the flags of mremap, which Python does not name."""


class PageReserve:
    """For a cache on `device`; empty where that is not in this memory, or until it is begun. Every `begin` and `refill`
    has its `give`, or it goes with its last owner."""

    def __init__(self, device: torch.device) -> None:
        self.num_bytes = 0
        """Ready, and not given yet."""
        self._libc: Any = _libc() if device.type == "cpu" else None
        self._size = 0
        """To which it is filled."""
        self._begin = self._end = 0
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def begin(self, weights_bytes: int) -> None:
        """Fill it in the background to a modest size, for a model of so many bytes."""
        most = min(_MOST_BYTES, _MOST_CACHES * weights_bytes, available_bytes(_CPU) // _SHARE_OF_AVAILABLE)
        self._size = most // _HUGE_PAGE * _HUGE_PAGE
        self._reserve()
        if self._begin:
            self._thread = threading.Thread(target=self._fill, name="infer-page-reserve", daemon=True)
            self._thread.start()

    def refill(self) -> None:
        """Fill it again to that size, at once, for a cache that takes the place of the one it was given to."""
        self.stop()
        self._release(self._begin)
        self._is_stopped = False
        self._reserve()
        self._fill()

    def stop(self) -> int:
        """Fill no further. Returns how many bytes are ready."""
        if self._thread is not None:
            self._is_stopped = True
            self._thread.join()
        return self.num_bytes

    def give(self, tensors: Iterable[torch.Tensor]) -> None:
        """Put the pages in the place of the first ones of `tensors`, about as many in each.

        tensors: contiguous, zeros, on the CPU, each a mapping of its own; the first of its elements are those that are
        used first
        """
        self.stop()
        places = [_whole_pages(tensor) for tensor in tensors]
        places = [(begin, end) for begin, end in places if begin < end]
        taken = self._begin
        for index, (begin, end) in enumerate(places):
            share = (self._begin + self.num_bytes - taken) // (len(places) - index) // _HUGE_PAGE * _HUGE_PAGE
            size = min(share, end - begin)
            if not size:
                continue
            if self._libc.mremap(taken, size, size, _MAY_MOVE | _FIXED, ctypes.c_void_p(begin)) != begin:
                break
            taken += size
        self._release(taken)

    def __del__(self) -> None:
        # Nobody else has it: the thread has ended.
        self._release(self._begin)

    def _reserve(self) -> None:
        self._begin = self._map(self._size)
        self._end = self._begin + self._size if self._begin else 0

    def _map(self, num_bytes: int) -> int:
        """Address of a mapping of whole huge pages; 0 where the system has none of this."""
        if not num_bytes or self._libc is None:
            return 0
        protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self._libc.mmap(None, num_bytes + _HUGE_PAGE, protection, flags, -1, 0)
        if address == ctypes.c_void_p(-1).value:
            return 0
        begin: int = -(-address // _HUGE_PAGE) * _HUGE_PAGE
        # What lies before and behind the whole huge pages goes back at once.
        for first, end in ((address, begin), (begin + num_bytes, address + num_bytes + _HUGE_PAGE)):
            if first < end:
                self._libc.munmap(first, end - first)
        self._libc.madvise(begin, num_bytes, mmap.MADV_HUGEPAGE)
        return begin

    def _fill(self) -> None:
        while not self._is_stopped and self._begin + self.num_bytes < self._end:
            step = min(_STEP, self._end - self._begin - self.num_bytes)
            if self._libc.madvise(self._begin + self.num_bytes, step, _POPULATE_WRITE):
                return
            self.num_bytes += step

    def _release(self, first: int) -> None:
        if first < self._end:
            self._libc.munmap(first, self._end - first)
        self._begin = self._end = self.num_bytes = 0


def _whole_pages(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of the first huge page that lies within `tensor`, and of the end of the last."""
    assert tensor.is_cpu, tensor.device
    assert tensor.is_contiguous(), tensor.stride()
    address = tensor.data_ptr()
    return -(-address // _HUGE_PAGE) * _HUGE_PAGE, (address + tensor.nbytes) // _HUGE_PAGE * _HUGE_PAGE


def _libc() -> Any:
    """The C library's calls for memory; None where it is not Linux's."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    signatures: dict[str, tuple[list[Any], Any]] = {
        "mmap": ([address, size, number, number, number, ctypes.c_long], address),
        "mremap": ([address, size, size, number, address], address),
        "madvise": ([address, size, number], number),
        "munmap": ([address, size], number),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(libc, name)
        function.argtypes, function.restype = arguments, result
    return libc
