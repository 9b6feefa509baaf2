"""rms_norm on a CPU: what it computes is said in `infer.kernels.rms_norm`."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import torch
from numpy import float32

from infer.kernels.cpu.compiler import Worker, compile_worker, compiled, record_of
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements, store_elements
from infer.kernels.cpu.row_wise import ROWS_AT_ONCE, run_rows
from infer.kernels.cpu.simd import multiply, multiply_add, splat, sum_of_lanes, take_number

if TYPE_CHECKING:
    from infer.kernels.cpu.arithmetic import Arithmetic


class Norm(NamedTuple):
    """One call. Tensors are addresses."""

    hidden: int
    weight: int
    output: int
    size: int
    eps: float
    num_rows: int
    num_taken: int


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The size of a row must be a multiple of 16."""
    size = hidden.shape[-1]
    assert size % LANES == 0, size
    hidden = hidden.contiguous()
    output = torch.empty_like(hidden)
    addresses = (hidden.data_ptr(), weight.data_ptr(), output.data_ptr())
    run_rows(_worker, hidden.dtype, hidden.numel() // size, (*addresses, size, eps))
    return output


@functools.cache
def _worker(arithmetic: Arithmetic) -> Worker:
    def work(call: Any) -> None:
        _normalise(arithmetic, numba.carray(call, 1)[0])

    return compile_worker(work, record_of(Norm))


@compiled
def _normalise(arithmetic: Any, call: Any) -> None:
    step = LANES * element_bytes(arithmetic)
    row_bytes = call.size * element_bytes(arithmetic)
    while True:
        first = take_number(call.num_taken) * ROWS_AT_ONCE
        if first >= call.num_rows:
            return
        for row in range(first, min(first + ROWS_AT_ONCE, call.num_rows)):
            source, target = call.hidden + row * row_bytes, call.output + row * row_bytes
            squares = splat(float32(0.0))
            for offset in range(0, row_bytes, step):
                elements = load_elements(arithmetic, source + offset)
                squares = multiply_add(elements, elements, squares)
            mean = sum_of_lanes(squares) / float32(call.size)
            scale = splat(float32(1.0) / float32(math.sqrt(mean + call.eps)))
            for offset in range(0, row_bytes, step):
                # Through memory, which rounds to the elements' type, as the definition does before the weight.
                store_elements(arithmetic, multiply(load_elements(arithmetic, source + offset), scale), target + offset)
                normalised = load_elements(arithmetic, target + offset)
                weight = load_elements(arithmetic, call.weight + offset)
                store_elements(arithmetic, multiply(normalised, weight), target + offset)
