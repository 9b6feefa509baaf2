"""Runs a worker on the threads that torch's operators run on.

A pool of our own would compete with torch's: idle OpenMP threads spin for a while, waiting for their next operator.
"""

from __future__ import annotations

import ctypes
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.kernels.cpu.compiler import Worker


def run(worker: Worker, fields: tuple[float, ...], num_threads: int) -> None:
    """Returns when all threads have. The worker divides the work among them by the counters of its record."""
    packed = worker.layout.pack(*fields)
    call = _buffer_type(len(packed)).from_buffer_copy(packed)
    if num_threads == 1:
        worker.function(call)
    elif (parallel := _openmp_parallel()) is not None:
        parallel(worker.address, call, num_threads, 0)
    else:
        run_on_own_threads(worker, call, num_threads)


def shares_openmp() -> bool:
    """Whether they are torch's own, and not a second pool."""
    return _openmp_parallel() is not None


def run_on_own_threads(worker: Worker, call: ctypes.Array[ctypes.c_char], num_threads: int) -> None:
    """For a torch whose OpenMP library does not take work from others."""
    list(_own_threads().map(worker.function, [call] * num_threads))


@functools.cache
def _buffer_type(num_bytes: int) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * num_bytes


@functools.cache
def _openmp_parallel() -> Callable[[int, Any, int, int], None] | None:
    """GOMP_parallel(function, argument, num_threads, flags): what GCC compiles `#pragma omp parallel` to. Looked up
    among the libraries that torch itself is linked to, since a process may hold several OpenMP libraries."""
    try:
        parallel = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (AttributeError, OSError):
        return None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


@functools.cache
def _own_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=torch.get_num_threads(), thread_name_prefix="infer-kernels")
