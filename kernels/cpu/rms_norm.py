"""rms_norm and add_rms_norm on a CPU: what they compute is said in `infer.kernels.rms_norm`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from numpy import float32

from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements, round_elements, store_elements
from infer.kernels.cpu.row_wise import row_worker, run_rows
from infer.kernels.cpu.simd import add, multiply, multiply_add, splat, sum_of_lanes


class Norm(NamedTuple):
    """One call. Tensors are addresses."""

    hidden: int
    residual: int
    """Added to `hidden` first, if it is not 0; `total` is their sum."""
    total: int
    weight: int
    output: int
    size: int
    eps: float
    num_rows: int


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The size of a row must be a multiple of 16."""
    hidden = hidden.contiguous()
    output = torch.empty_like(hidden)
    _run(hidden, 0, 0, weight, eps, output)
    return output


def add_rms_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The size of a row must be a multiple of 16."""
    hidden, residual = hidden.contiguous(), residual.contiguous()
    total, output = torch.empty_like(hidden), torch.empty_like(hidden)
    _run(hidden, residual.data_ptr(), total.data_ptr(), weight, eps, output)
    return total, output


def _run(
    hidden: torch.Tensor, residual: int, total: int, weight: torch.Tensor, eps: float, output: torch.Tensor
) -> None:
    size = hidden.shape[-1]
    assert size % LANES == 0, size
    addresses = (hidden.data_ptr(), residual, total, weight.data_ptr(), output.data_ptr())
    run_rows(_worker, hidden.dtype, hidden.numel() // size, (*addresses, size, eps))


@compiled
def _normalise_row(arithmetic: Any, call: Any, row: int) -> None:
    add_and_normalise(arithmetic, call, row, call.output + row * call.size * element_bytes(arithmetic))


@compiled
def add_and_normalise(arithmetic: Any, call: Any, row: int, target: int) -> None:
    """The norm of a row, and the sum before it where there is one; `call` need not say where the norm goes."""
    row_bytes = call.size * element_bytes(arithmetic)
    source = call.hidden + row * row_bytes
    if call.residual != 0:
        total = call.total + row * row_bytes
        _add(arithmetic, source, call.residual + row * row_bytes, total, row_bytes)
        source = total
    normalise(arithmetic, source, target, call.weight, call.size, call.eps)


@compiled
def _add(arithmetic: Any, left: int, right: int, total: int, row_bytes: int) -> None:
    for offset in range(0, row_bytes, LANES * element_bytes(arithmetic)):
        elements = add(load_elements(arithmetic, left + offset), load_elements(arithmetic, right + offset))
        store_elements(arithmetic, elements, total + offset)


@compiled
def normalise(arithmetic: Any, source: int, target: int, weight: int, size: int, eps: float) -> None:
    """One row of `size` elements. `target` may be `source`."""
    step = LANES * element_bytes(arithmetic)
    row_bytes = size * element_bytes(arithmetic)
    squares = splat(float32(0.0))
    for offset in range(0, row_bytes, step):
        elements = load_elements(arithmetic, source + offset)
        squares = multiply_add(elements, elements, squares)
    mean = sum_of_lanes(squares) / float32(size)
    scale = splat(float32(1.0) / float32(math.sqrt(mean + eps)))
    for offset in range(0, row_bytes, step):
        # Rounded before the weight, as the definition has it.
        normalised = round_elements(arithmetic, multiply(load_elements(arithmetic, source + offset), scale))
        store_elements(arithmetic, multiply(normalised, load_elements(arithmetic, weight + offset)), target + offset)


_worker = row_worker(Norm, _normalise_row)
