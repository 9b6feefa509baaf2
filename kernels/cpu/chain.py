"""Steps of a layer that follow each other row by row, as one call: threads do not wait for each other in between.

A step's units of work are its chunks of rows times its panels of weights; all units of a step come before those of the
next. Threads take them in that order. A unit waits until its rows are through the step before: whoever computes them
has begun earlier, so however few threads there are, none waits for ever.

    step 0   | rows 0-65, panel 0 | rows 0-65, panel 1 | ... | rows 66-127, panel 0 | ...
    step 1   | rows 0-65          | rows 66-127        |
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import torch

from infer.kernels.cpu.compiler import compile_worker, compiled
from infer.kernels.cpu.linear import Product, rows_multiplier
from infer.kernels.cpu.linear_block import Epilogue
from infer.kernels.cpu.record import take_unit
from infer.kernels.cpu.register_block import MAX_ROWS
from infer.kernels.cpu.rms_norm import normalise
from infer.kernels.cpu.row_wise import element_arithmetic
from infer.kernels.cpu.simd import count_up, load_float, load_int64, wait_for
from infer.kernels.cpu.threads import run

if TYPE_CHECKING:
    from infer.kernels.cpu.arithmetic import Arithmetic
    from infer.kernels.cpu.compiler import Worker
    from infer.kernels.cpu.panels import Panels

_PLAIN, _ADD, _GATE, _NORM = 0, 1, 2, 3
"""What a step is: a product with what follows it, or an RMS norm."""

_KINDS = {Epilogue.PLAIN: _PLAIN, Epilogue.ADD: _ADD, Epilogue.GATE: _GATE}

_FIELDS = 12
_EPS = 8 * 11
_pack_product = struct.Struct("@11q8x").pack
_pack_norm = struct.Struct("@11qf4x").pack

_MAX_ROWS_AT_ONCE = 22 * MAX_ROWS
"""These stay in a second-level cache while panels come and go."""

_MIN_ROWS_AT_ONCE = 8 * MAX_ROWS
"""With fewer, what a panel costs to bring near is not made up for by threads that wait less."""


class Chain(NamedTuple):
    """One call."""

    steps: int
    """Address of their records, `_FIELDS` words each."""
    num_steps: int
    done: int
    """Address of int64 `[num_steps, num_chunks]`: units that are through."""
    num_rows: int
    rows_at_once: int
    num_chunks: int
    num_threads: int


class NormedRows(NamedTuple):
    """What `normalise` is told."""

    weight: int
    size: int
    eps: float


def product_step(epilogue: Epilogue, left: int, left_bytes: int, panels: Panels, out: int, residual: int = 0) -> bytes:
    """Addresses of matrices; but for the left one, whose rows may lie apart, they are contiguous."""
    out_features = panels.out_features
    out_bytes = out_features * panels.weight.itemsize
    kind, product = _KINDS[epilogue], (left, left_bytes, *panels.addresses, residual, out, out_bytes, out_features)
    return _pack_product(kind, *product, panels.num_steps, panels.num_panels)


def norm_step(rows: int, weight: int, size: int, row_bytes: int, eps: float, out: int) -> bytes:
    """Addresses of contiguous matrices, and of the norm's weight."""
    return _pack_norm(_NORM, rows, row_bytes, weight, 0, 0, out, row_bytes, size, 0, 1, eps)


def run_chain(steps: list[bytes], num_rows: int, dtype: torch.dtype) -> None:
    """Each step reads what those before it have written to the same rows only, and whatever was there before."""
    if num_rows == 0:
        return
    num_threads = torch.get_num_threads()
    rows_at_once = _choose_rows_at_once(num_rows, num_threads)
    num_chunks = -(-num_rows // rows_at_once)
    # Named, so that they live until the threads are done.
    records = ctypes.create_string_buffer(b"".join(steps))
    done = (ctypes.c_int64 * (len(steps) * num_chunks))()
    fields = (
        ctypes.addressof(records),
        len(steps),
        ctypes.addressof(done),
        num_rows,
        rows_at_once,
        num_chunks,
        num_threads,
    )
    run(_worker(element_arithmetic(dtype)), fields, num_threads)


@functools.lru_cache(4096)
def _choose_rows_at_once(num_rows: int, num_threads: int) -> int:
    """Two chunks at least, if they are worth it: the threads work at one while the last rows of the other are waited
    for. With many threads more, since a layer has few panels."""
    num_chunks = max(2, num_threads // 2, -(-num_rows // _MAX_ROWS_AT_ONCE))
    least = _MIN_ROWS_AT_ONCE if num_threads <= 4 else 2 * MAX_ROWS
    rows = max(least, -(-num_rows // num_chunks))
    return -(-rows // MAX_ROWS) * MAX_ROWS


@functools.cache
def _worker(arithmetic: Arithmetic) -> Worker:
    multiply, multiply_and_add, multiply_gated = (
        rows_multiplier(epilogue) for epilogue in (Epilogue.PLAIN, Epilogue.ADD, Epilogue.GATE)
    )

    def work(pointer: Any) -> None:
        call = numba.carray(pointer, 1)[0]
        while True:
            unit, number, step = take_unit(call), 0, call.steps
            num_panels = load_int64(step + 8 * 10)
            while unit >= num_panels * call.num_chunks:
                unit -= num_panels * call.num_chunks
                number += 1
                if number == call.num_steps:
                    return
                step += 8 * _FIELDS
                num_panels = load_int64(step + 8 * 10)
            chunk, panel = unit // num_panels, unit % num_panels
            if number > 0:
                num_units = load_int64(step - 8 * _FIELDS + 8 * 10)
                wait_for(call.done + ((number - 1) * call.num_chunks + chunk) * 8, num_units)
            first = chunk * call.rows_at_once
            end = min(first + call.rows_at_once, call.num_rows)
            kind = load_int64(step)
            if kind == _NORM:
                _normalise_rows(arithmetic, step, first, end)
            else:
                product = _product_at(step)
                next_panel = (panel + call.num_threads) % num_panels
                if kind == _PLAIN:
                    multiply(arithmetic, product, panel, next_panel, first, end)
                elif kind == _ADD:
                    multiply_and_add(arithmetic, product, panel, next_panel, first, end)
                else:
                    multiply_gated(arithmetic, product, panel, next_panel, first, end)
            count_up(call.done + (number * call.num_chunks + chunk) * 8)

    return compile_worker(work, Chain)


@compiled
def _product_at(step: int) -> Product:
    return Product(
        load_int64(step + 8),
        load_int64(step + 16),
        load_int64(step + 24),
        load_int64(step + 32),
        load_int64(step + 40),
        load_int64(step + 48),
        load_int64(step + 56),
        load_int64(step + 64),
        load_int64(step + 72),
        load_int64(step + 80),
    )


@compiled
def _normalise_rows(arithmetic: Any, step: int, first: int, end: int) -> None:
    product = _product_at(step)
    normed = NormedRows(product.panels, product.out_features, load_float(step + _EPS))
    for row in range(first, end):
        source, target = product.left + row * product.left_bytes, product.out + row * product.out_bytes
        normalise(arithmetic, source, target, normed.weight, normed.size, normed.eps)
