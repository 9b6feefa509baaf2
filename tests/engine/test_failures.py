"""What an exception says: whether memory was short, and whether the device is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from infer.engine.errors import describe
from infer.engine.failures import is_device_lost, is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_want_of_memory_is_known_by_whatever_name(error):
    assert is_out_of_memory(error)
    assert not is_device_lost(error)


@pytest.mark.parametrize("allocate", [lambda: torch.empty(1 << 50), lambda: np.empty(1 << 50)])
def test_want_of_memory_is_known_as_libraries_really_say_it(allocate):
    with pytest.raises((RuntimeError, MemoryError)) as raised:
        allocate()
    assert is_out_of_memory(raised.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("Triton Error [CUDA]: misaligned address"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ],
)
def test_lost_device_is_known(error):
    assert is_device_lost(error)
    assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [ValueError("out of memory, says the row"), RuntimeError("mat1 and mat2"), KeyError(1)]
)
def test_other_errors_are_neither(error):
    assert not is_out_of_memory(error)
    assert not is_device_lost(error)


def test_description_is_one_short_line():
    assert describe(ValueError("a\n\tb")) == "ValueError: a b"
    assert describe(MemoryError()) == "MemoryError"
    assert len(describe(ValueError("x" * 1000))) == 300
