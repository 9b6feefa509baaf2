"""Rows that leave quantised, on a CPU: hidden states as they are, normed or activated.

What they compute is said in `infer.kernels.quant_linear` and `infer.kernels.quantized_outputs`. A row is computed as
its operator does it, in memory of the thread, and becomes bytes while it is near.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import torch
from numpy import float32
from torch.nn.functional import pad

from infer.kernels.cpu.activation import activate
from infer.kernels.cpu.arithmetic import Arithmetic
from infer.kernels.cpu.compiler import compile_worker, compiled
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements
from infer.kernels.cpu.record import take_thread, take_unit
from infer.kernels.cpu.rms_norm import add_and_normalise
from infer.kernels.cpu.row_wise import ROWS_AT_ONCE, element_arithmetic
from infer.kernels.cpu.simd import (
    add,
    hadamard,
    larger_magnitude,
    largest_magnitude_of_lanes,
    multiply,
    splat,
    store,
    store_float,
    store_shifted_bytes,
    subtract,
)
from infer.kernels.cpu.threads import run
from infer.kernels.quantized_operands import LARGEST, SMALLEST_PEAK, QuantizedTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.kernels.cpu.compiler import Worker

_LARGEST = float32(LARGEST[torch.int8])
_SMALLEST_PEAK = float32(SMALLEST_PEAK)
_FLOAT_BYTES = 4
_ROTATED = Arithmetic.FLOAT32
"""How rotated rows lie in memory."""
_VECTOR_BYTES = _FLOAT_BYTES * LANES


class Rows(NamedTuple):
    """A call that quantises rows. Tensors are addresses."""

    hidden: int
    size: int
    elements: int
    scales: int
    scratch: int
    scratch_bytes: int
    rotation: int
    """Of a thread."""
    num_rows: int


class Norm(NamedTuple):
    """A call that norms them first: see `infer.kernels.cpu.rms_norm.Norm`."""

    hidden: int
    residual: int
    total: int
    weight: int
    size: int
    eps: float
    elements: int
    scales: int
    scratch: int
    scratch_bytes: int
    rotation: int
    num_rows: int


class Gate(NamedTuple):
    """A call that activates them first: see `infer.kernels.cpu.activation.Gate`."""

    gate: int
    up: int
    size: int
    gate_row_bytes: int
    up_row_bytes: int
    elements: int
    scales: int
    scratch: int
    scratch_bytes: int
    rotation: int
    num_rows: int


def quantize_tokens(hidden: torch.Tensor, dtype: torch.dtype, rotation: int = 1) -> QuantizedTokens:
    """To int8 only."""
    size = hidden.shape[-1]
    assert size % rotation == 0, (size, rotation)
    hidden = pad(hidden, (0, -size % LANES)) if size % LANES else hidden.contiguous()
    return _run(_rows_worker, hidden, dtype, rotation, (hidden.data_ptr(), hidden.shape[-1]), size)


def quantized_rms_norm(
    hidden: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype, rotation: int = 1
) -> QuantizedTokens:
    """The size of a row must be a multiple of 16."""
    hidden, size = hidden.contiguous(), hidden.shape[-1]
    return _run(_norm_worker, hidden, dtype, rotation, (hidden.data_ptr(), 0, 0, weight.data_ptr(), size, eps), size)


def quantized_add_rms_norm(
    hidden: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    rotation: int = 1,
) -> tuple[torch.Tensor, QuantizedTokens]:
    """The size of a row must be a multiple of 16."""
    hidden, residual, size = hidden.contiguous(), residual.contiguous(), hidden.shape[-1]
    total = torch.empty_like(hidden)
    fields = (hidden.data_ptr(), residual.data_ptr(), total.data_ptr(), weight.data_ptr(), size, eps)
    return total, _run(_norm_worker, hidden, dtype, rotation, fields, size)


def quantized_silu_and_mul(
    gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype, rotation: int = 1
) -> QuantizedTokens:
    """The size of a row must be a multiple of 16."""
    gates, ups, size = gate.flatten(0, -2), up.flatten(0, -2), gate.shape[-1]
    row_bytes = (gates.stride()[0] * gates.itemsize, ups.stride()[0] * ups.itemsize)
    return _run(_gate_worker, gate, dtype, rotation, (gates.data_ptr(), ups.data_ptr(), size, *row_bytes), size)


def _run(
    worker: Callable[[Arithmetic], Worker],
    rows: torch.Tensor,
    dtype: torch.dtype,
    rotation: int,
    fields: tuple[float, ...],
    size: int,
) -> QuantizedTokens:
    """Run `worker` over as many rows as there are in `rows`, of its dtype. `fields` are those of its call, up to the
    elements; `size` of the elements count."""
    assert dtype is torch.int8, dtype
    assert rows.shape[-1] % LANES == 0, rows.shape
    elements = torch.empty(rows.shape, dtype=torch.uint8)
    scales = torch.empty(rows.shape[:-1], dtype=torch.float32)
    num_rows = scales.numel()
    num_threads = min(torch.get_num_threads(), -(-num_rows // ROWS_AT_ONCE))
    if num_threads:
        # Of a thread: a row as its operator makes it, and one rotated.
        scratch = torch.empty((num_threads, 2, rows.shape[-1]), dtype=torch.float32)
        addresses = (elements.data_ptr(), scales.data_ptr(), scratch.data_ptr())
        scratch_bytes = scratch.stride()[0] * scratch.itemsize
        rest = (*addresses, scratch_bytes, rotation, num_rows)
        run(worker(element_arithmetic(rows.dtype)), (*fields, *rest), num_threads)
    return QuantizedTokens(elements, scales, size)


def _worker(
    fields: type[tuple[Any, ...]], work_on_row: Callable[[Any, Any, int, int], int]
) -> Callable[[Arithmetic], Worker]:
    """Compiles a worker that quantises what `work_on_row(arithmetic, call, row, scratch)` returns the address of."""

    @functools.cache
    def worker(arithmetic: Arithmetic) -> Worker:
        def work(pointer: Any) -> None:
            call = numba.carray(pointer, 1)[0]
            scratch = call.scratch + take_thread(call) * call.scratch_bytes
            while True:
                first = take_unit(call) * ROWS_AT_ONCE
                if first >= call.num_rows:
                    return
                for row in range(first, min(first + ROWS_AT_ONCE, call.num_rows)):
                    source = work_on_row(arithmetic, call, row, scratch)
                    scale_at = call.scales + row * _FLOAT_BYTES
                    target = call.elements + row * call.size
                    if call.rotation == 1:
                        _quantize(arithmetic, source, call.size, target, scale_at)
                    else:
                        rotated = scratch + call.size * _FLOAT_BYTES
                        _rotate(arithmetic, source, call.size, call.rotation, rotated)
                        _quantize(_ROTATED, rotated, call.size, target, scale_at)

        return compile_worker(work, fields)

    return worker


@compiled
def _quantize(arithmetic: Any, source: int, size: int, target: int, scale_at: int) -> None:
    peaks = splat(_SMALLEST_PEAK)
    for column in range(0, size, LANES):
        peaks = larger_magnitude(peaks, load_elements(arithmetic, source + column * element_bytes(arithmetic)))
    peak = largest_magnitude_of_lanes(peaks)
    store_float(peak / _LARGEST, scale_at)
    inverse = splat(_LARGEST / peak)
    for column in range(0, size, LANES):
        elements = load_elements(arithmetic, source + column * element_bytes(arithmetic))
        store_shifted_bytes(multiply(elements, inverse), target + column)


@compiled
def _rotate(arithmetic: Any, source: int, size: int, rotation: int, target: int) -> None:
    """See `infer.kernels.reference.rotate`: neighbours in a vector first, then the same lanes of several."""
    step = LANES * element_bytes(arithmetic)
    for column in range(0, size, rotation):
        begin, out = source + column * element_bytes(arithmetic), target + column * _FLOAT_BYTES
        first = hadamard(load_elements(arithmetic, begin))
        if rotation == LANES:
            store(first, out)
            continue
        second = hadamard(load_elements(arithmetic, begin + step))
        sums, differences = add(first, second), subtract(first, second)
        if rotation == 2 * LANES:
            store(sums, out)
            store(differences, out + _VECTOR_BYTES)
            continue
        third = hadamard(load_elements(arithmetic, begin + 2 * step))
        fourth = hadamard(load_elements(arithmetic, begin + 3 * step))
        more_sums, more_differences = add(third, fourth), subtract(third, fourth)
        store(add(sums, more_sums), out)
        store(add(differences, more_differences), out + _VECTOR_BYTES)
        store(subtract(sums, more_sums), out + 2 * _VECTOR_BYTES)
        store(subtract(differences, more_differences), out + 3 * _VECTOR_BYTES)


@compiled
def _plain_row(arithmetic: Any, call: Any, row: int, scratch: int) -> int:
    address: int = call.hidden + row * call.size * element_bytes(arithmetic)
    return address


@compiled
def _normed_row(arithmetic: Any, call: Any, row: int, scratch: int) -> int:
    add_and_normalise(arithmetic, call, row, scratch)
    return scratch


@compiled
def _activated_row(arithmetic: Any, call: Any, row: int, scratch: int) -> int:
    activate(arithmetic, call, row, scratch)
    return scratch


_rows_worker = _worker(Rows, _plain_row)
_norm_worker = _worker(Norm, _normed_row)
_gate_worker = _worker(Gate, _activated_row)
