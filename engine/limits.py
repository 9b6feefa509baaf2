"""What this machine can do at most: products a second in a dtype, bytes read a second. Measured, in about a second."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from infer.engine.prepack import prepack_linears

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 0.4
"""For each figure."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The best of some runs: what disturbs a run makes it slower, nothing makes it faster."""

    gemm_flops: float
    """Operations a second of a large product in the model's dtype."""
    read_bandwidth: float
    """Bytes a second from memory, by all threads."""

    def best_of(self, other: MachineLimits) -> MachineLimits:
        """Of two measurements of one machine."""
        return MachineLimits(max(self.gemm_flops, other.gemm_flops), max(self.read_bandwidth, other.read_bandwidth))

    @property
    def ridge(self) -> float:
        """Operations a byte, below which reading is what takes the time."""
        return self.gemm_flops / self.read_bandwidth


def measure_limits(device: torch.device, dtype: torch.dtype) -> MachineLimits:
    """Of all the threads that torch is set to use."""
    return MachineLimits(_gemm_flops(device, dtype), _read_bandwidth(device))


@torch.inference_mode()
def _gemm_flops(device: torch.device, dtype: torch.dtype) -> float:
    num_rows, size = (8192, 8192) if device.type == "cuda" else (512, 2048)
    # As a network has it: laid out once, where that is of use.
    layers = nn.Sequential(nn.Linear(size, size, bias=False, device=device, dtype=dtype))
    prepack_linears(layers)
    hidden = torch.randn(num_rows, size, device=device, dtype=dtype)
    return 2 * num_rows * size * size / _least_seconds(lambda: layers(hidden), device)


@torch.inference_mode()
def _read_bandwidth(device: torch.device) -> float:
    # Many times what any cache holds.
    num_bytes = 8 << 30 if device.type == "cuda" else 512 << 20
    data = torch.ones(num_bytes // 8, dtype=torch.int64, device=device)
    return num_bytes / _least_seconds(data.sum, device)


def _least_seconds(work: Callable[[], object], device: torch.device) -> float:
    work()
    least, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        _wait_for(device)
        start = time.perf_counter()
        work()
        _wait_for(device)
        least = min(least, time.perf_counter() - start)
    return least


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
