"""argmax on a CPU: what it computes is said in `infer.kernels.argmax`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import torch
from numpy import float32

from infer.kernels.cpu.arithmetic import available_arithmetic
from infer.kernels.cpu.compiler import compile_worker, compiled
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements
from infer.kernels.cpu.record import take_unit
from infer.kernels.cpu.row_wise import element_arithmetic
from infer.kernels.cpu.simd import (
    first_lane_equal,
    larger_magnitude,
    largest_lane,
    largest_magnitude_of_lanes,
    maximum,
    splat,
    store_float,
    store_int64,
)
from infer.kernels.cpu.threads import run

if TYPE_CHECKING:
    from infer.kernels.cpu.arithmetic import Arithmetic
    from infer.kernels.cpu.compiler import Worker

_LOWEST = float32(float("-inf"))


class Search(NamedTuple):
    """One call. Tensors are addresses."""

    rows: int
    row_bytes: int
    """From one to the next."""
    size: int
    maxima: int
    indices: int
    num_rows: int


def why_not(dtype: torch.dtype, size: int) -> str | None:
    """What keeps it from serving such rows; None if nothing does."""
    if not available_arithmetic(dtype):
        return f"it compares float32 and bfloat16 only: {dtype}"
    if size < LANES:
        return f"a row must have at least {LANES} elements: {size}"
    return None


def argmax(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if rows.stride()[1] != 1:
        rows = rows.contiguous()
    num_rows, size = rows.shape
    maxima = torch.empty(num_rows, dtype=torch.float32)
    indices = torch.empty(num_rows, dtype=torch.int64)
    row_bytes = rows.stride()[0] * rows.itemsize
    fields = (rows.data_ptr(), row_bytes, size, maxima.data_ptr(), indices.data_ptr(), num_rows)
    if num_rows:
        run(_worker(element_arithmetic(rows.dtype)), fields, min(torch.get_num_threads(), num_rows))
    return maxima, indices


@functools.cache
def _worker(arithmetic: Arithmetic) -> Worker:
    def work(pointer: Any) -> None:
        call = numba.carray(pointer, 1)[0]
        while True:
            row = take_unit(call)
            if row >= call.num_rows:
                return
            _search(arithmetic, call, row)

    return compile_worker(work, Search)


@compiled
def _search(arithmetic: Any, call: Any, row: int) -> None:
    step = LANES * element_bytes(arithmetic)
    first = call.rows + row * call.row_bytes
    # The last vector may overlap the one before.
    last = first + call.size * element_bytes(arithmetic) - step
    end = load_elements(arithmetic, last)
    largest, magnitude = end, end
    other = splat(_LOWEST)
    # Two at a time: one maximum after the other would take longer than all the rest.
    for address in range(first, last - step + 1, 2 * step):
        left, right = load_elements(arithmetic, address), load_elements(arithmetic, address + step)
        largest, other = maximum(left, largest), maximum(right, other)
        magnitude = larger_magnitude(larger_magnitude(left, right), magnitude)
    # One may be left between the pairs and the last vector.
    address = max(first, last - step)
    between = load_elements(arithmetic, address)
    magnitude = larger_magnitude(between, magnitude)
    greatest = largest_lane(maximum(maximum(between, largest), other))
    store_int64(0, call.indices + row * 8)
    if not largest_magnitude_of_lanes(magnitude) <= float32(float("inf")):
        store_float(float32(float("nan")), call.maxima + row * 4)
        return
    store_float(greatest, call.maxima + row * 4)
    wanted = splat(greatest)
    address = first
    while address < last:
        lane = first_lane_equal(load_elements(arithmetic, address), wanted)
        if lane < LANES:
            break
        address += step
    address = min(address, last)
    lane = first_lane_equal(load_elements(arithmetic, address), wanted)
    store_int64((address - first) // element_bytes(arithmetic) + lane, call.indices + row * 8)
