"""silu_and_mul on a CPU: what it computes is said in `infer.kernels.activation`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from numpy import float32

from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements, round_elements, store_elements
from infer.kernels.cpu.row_wise import row_worker, run_rows
from infer.kernels.cpu.simd import add, divide, exp2, maximum, multiply, splat

_MINUS_LOG2_E = float32(-math.log2(math.e))
_LOWEST = float32(-87.0)
"""Below it exp(-x) leaves float32, and silu is as good as 0."""


class Gate(NamedTuple):
    """One call. Tensors are addresses; rows may lie apart."""

    gate: int
    up: int
    output: int
    size: int
    gate_row_bytes: int
    up_row_bytes: int
    num_rows: int


def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The size of a row must be a multiple of 16."""
    size = gate.shape[-1]
    assert size % LANES == 0, size
    output = torch.empty_like(gate, memory_format=torch.contiguous_format)
    gates, ups = gate.flatten(0, -2), up.flatten(0, -2)
    addresses = (gates.data_ptr(), ups.data_ptr(), output.data_ptr())
    row_bytes = (gates.stride()[0] * gates.itemsize, ups.stride()[0] * ups.itemsize)
    run_rows(_worker, gate.dtype, gate.numel() // size, (*addresses, size, *row_bytes))
    return output


@compiled
def _activate_row(arithmetic: Any, call: Any, row: int) -> None:
    activate(arithmetic, call, row, call.output + row * call.size * element_bytes(arithmetic))


@compiled
def activate(arithmetic: Any, call: Any, row: int, target: int) -> None:
    """A row of the product; `call` need not say where it goes."""
    step = LANES * element_bytes(arithmetic)
    row_bytes = call.size * element_bytes(arithmetic)
    one = splat(float32(1.0))
    gate, up = call.gate + row * call.gate_row_bytes, call.up + row * call.up_row_bytes
    for offset in range(0, row_bytes, step):
        # In this order a NaN stays one.
        elements = maximum(splat(_LOWEST), load_elements(arithmetic, gate + offset))
        decay = exp2(multiply(elements, splat(_MINUS_LOG2_E)))
        # Rounded before the product, as the definition has it.
        activated = round_elements(arithmetic, divide(elements, add(one, decay)))
        product = multiply(activated, load_elements(arithmetic, up + offset))
        store_elements(arithmetic, product, target + offset)


_worker = row_worker(Gate, _activate_row)
