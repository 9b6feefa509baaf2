"""What an exception of a step says: whether memory was short, whether the device is lost; and giving memory back."""

from __future__ import annotations

import gc
import traceback
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "unable to allocate",
    "bad_alloc",
    "bad allocation",
    "alloc_failed",
    "can't start new thread",
    "could not create a memory",
)
"""Libraries have no class of their own for it: torch on a CPU, C++ behind it, oneDNN, cuBLAS, Triton."""

_DEVICE_LOST = ("cuda error", "triton error [cuda]", "cudnn error", "cublas_status", "device-side assert")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller step may do: memory was short, of whatever kind."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(text in str(error).lower() for text in _NO_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """Whether every later use of the device fails, too: after most errors of CUDA the process has to begin anew."""
    if is_out_of_memory(error):
        return False
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _DEVICE_LOST)


def give_memory_back(error: BaseException, device: torch.device) -> None:
    """Let go of what the failed step holds: its tensors hang on the frames that `error` came through."""
    for each in _with_causes(error):
        traceback.clear_frames(each.__traceback__)
    if is_out_of_memory(error):
        # Not after other failures: it takes as long as many steps.
        gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        each = queue.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            queue += [each.__cause__, each.__context__]
            yield each
