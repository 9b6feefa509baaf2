"""dequant_linear on a CPU: what it computes is said in `infer.kernels.dequant_linear`.

Sixty-four rows of the weight at a time become numbers in a second-level cache, and all rows of the input are multiplied
with them there: the more there are, the less it costs, and for a few it is less than reading the numbers from memory.

Every element of the output is added up in the same order, whatever is computed beside it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import torch
import torch.nn.functional as F
from llvmlite import ir
from numba import types

from infer.kernels.cpu.compiler import compile_worker, compiled
from infer.kernels.cpu.dequantize import dequantize_tile
from infer.kernels.cpu.llvm import (
    FLOAT,
    INT16,
    INT32,
    LANES,
    VOID,
    arithmetic_instruction,
    broadcast,
    call,
    lanes,
)
from infer.kernels.cpu.operands import depth_of_step, element_bytes, emit_rounded, store_elements
from infer.kernels.cpu.products import multiply_keys
from infer.kernels.cpu.record import take_thread, take_unit
from infer.kernels.cpu.register_block import MAX_COLUMNS, MAX_ROWS
from infer.kernels.cpu.row_wise import element_arithmetic
from infer.kernels.cpu.simd import VECTOR, add, load, store, store_int64
from infer.kernels.cpu.threads import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.kernels.cpu.arithmetic import Arithmetic
    from infer.kernels.cpu.compiler import Worker
    from infer.kernels.grouped_weight import GroupedWeight

_TILES = 4
"""In a panel."""
_PANEL_BYTES = 1 << 18
"""With what is multiplied and added up beside it, it fits a second-level cache of a megabyte."""
_ROWS = 48 * MAX_ROWS
"""Multiplied with a panel before it is made again: their sums stay in the cache, too."""


class Call(NamedTuple):
    """One call. Tensors are addresses, 0 where there is none. The first fields are a GroupedWeight, as
    `dequantize_tile` reads it."""

    codes: int
    high: int
    scales: int
    scale_factors: int
    minimums: int
    minimum_factors: int
    scale_bytes: int
    """Of a scale or a minimum: 2 or 4."""
    code_bits: int
    zero: int
    group: int
    groups_per_scale: int
    in_features: int
    out_features: int
    hidden: int
    hidden_row_bytes: int
    num_rows: int
    bias: int
    """float32, as many as the tiles have rows."""
    output: int
    output_row_bytes: int
    num_columns_at_once: int
    """Columns of the weight that fit into a panel."""
    num_threads: int
    workspaces: int
    workspace_bytes: int


def dequant_linear(
    hidden: torch.Tensor, weights: Sequence[GroupedWeight], bias: torch.Tensor | None = None
) -> torch.Tensor:
    """A row's result does not depend on the other rows, to the last bit."""
    in_features = hidden.shape[-1]
    rows = hidden.reshape(-1, in_features)
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    output = hidden.new_empty(len(rows), sum(weight.out_features for weight in weights))
    first = 0
    for weight in weights:
        _multiply(rows, weight, None if bias is None else bias[first:], output[:, first:])
        first += weight.out_features
    return output.view(*hidden.shape[:-1], output.shape[-1])


def _multiply(rows: torch.Tensor, weight: GroupedWeight, bias: torch.Tensor | None, output: torch.Tensor) -> None:
    """Writes as many columns of `output` as the weight has rows."""
    if not len(rows):
        return
    num_threads, size = torch.get_num_threads(), rows.element_size()
    # A whole number of the smallest groups.
    columns_at_once = min(_PANEL_BYTES // (_TILES * LANES * size), weight.in_features)
    space = _workspaces(num_threads)
    padded = None if bias is None else F.pad(bias[: weight.out_features].float(), (0, -weight.out_features % LANES))
    run(
        _worker(element_arithmetic(rows.dtype)),
        (
            *_weight_fields(weight),
            rows.data_ptr(),
            rows.stride(0) * size,
            len(rows),
            0 if padded is None else padded.data_ptr(),
            output.data_ptr(),
            output.stride(0) * size,
            columns_at_once,
            num_threads,
            space.data_ptr(),
            space.stride(0),
        ),
        num_threads,
    )


def _weight_fields(weight: GroupedWeight) -> tuple[int, ...]:
    names = ("codes", "high", "scales", "scale_factors", "minimums", "minimum_factors")
    tensors = (getattr(weight, name) for name in names)
    return (
        *(0 if tensor is None else tensor.data_ptr() for tensor in tensors),
        weight.scales.element_size(),
        weight.code_bits,
        weight.zero,
        weight.group,
        weight.groups_per_scale,
        weight.in_features,
        weight.out_features,
    )


@functools.cache
def _workspaces(num_threads: int) -> torch.Tensor:
    """A panel, the sums of its products, those of one chunk of columns, and a table of tiles; for each thread."""
    num_bytes = _PANEL_BYTES + 2 * _ROWS * _TILES * LANES * 4 + 8 * _TILES
    return torch.empty(num_threads, -(-num_bytes // 4096) * 4096, dtype=torch.uint8)


@functools.cache
def _worker(arithmetic: Arithmetic) -> Worker:
    def work(pointer: Any) -> None:
        call = numba.carray(pointer, 1)[0]
        space = call.workspaces + take_thread(call) * call.workspace_bytes
        num_panels = (call.out_features + _TILES * LANES - 1) // (_TILES * LANES)
        # Panels that would leave some threads idle at the end are shared: each takes a part of the rows.
        num_shared = num_panels % call.num_threads
        num_whole = num_panels - num_shared
        while True:
            unit = take_unit(call)
            if unit >= num_whole + num_shared * call.num_threads:
                return
            if unit < num_whole:
                _multiply_panel(arithmetic, call, unit, 0, call.num_rows, space)
            else:
                panel = num_whole + (unit - num_whole) // call.num_threads
                part = (unit - num_whole) % call.num_threads
                first = call.num_rows * part // call.num_threads
                end = call.num_rows * (part + 1) // call.num_threads
                _multiply_panel(arithmetic, call, panel, first, end, space)

    return compile_worker(work, Call)


@compiled
def _multiply_panel(arithmetic: Any, call: Any, panel: int, first_row: int, end_row: int, space: int) -> None:
    first_tile = panel * _TILES
    num_tiles = min(_TILES, (call.out_features + LANES - 1) // LANES - first_tile)
    sums = space + _PANEL_BYTES
    chunk = sums + _ROWS * _TILES * LANES * 4
    for first in range(first_row, end_row, _ROWS):
        num_rows = min(_ROWS, end_row - first)
        for start in range(0, call.in_features, call.num_columns_at_once):
            end = min(start + call.num_columns_at_once, call.in_features)
            tile_bytes = (end - start) * LANES * element_bytes(arithmetic)
            for tile in range(num_tiles):
                dequantize_tile(arithmetic, call, first_tile + tile, start, end, space + tile * tile_bytes)
            products = sums if start == 0 else chunk
            _multiply_rows(arithmetic, call, first, num_rows, start, end, num_tiles, space, products)
            if start > 0:
                for element in range(0, num_rows * _TILES * LANES * 4, LANES * 4):
                    store(add(load(sums + element), load(chunk + element)), sums + element)
        _write(arithmetic, call, first, num_rows, first_tile, num_tiles, sums)


@compiled
def _multiply_rows(
    arithmetic: Any,
    call: Any,
    first: int,
    num_rows: int,
    start: int,
    end: int,
    num_tiles: int,
    panel: int,
    products: int,
) -> None:
    tile_bytes = (end - start) * LANES * element_bytes(arithmetic)
    table = panel + _PANEL_BYTES + 2 * _ROWS * _TILES * LANES * 4
    for tile in range(num_tiles):
        store_int64(panel + tile * tile_bytes, table + tile * 8)
    num_steps = (end - start) // depth_of_step(arithmetic)
    hidden = call.hidden + first * call.hidden_row_bytes + start * element_bytes(arithmetic)
    for row in range(0, num_rows, MAX_ROWS):
        rows = min(MAX_ROWS, num_rows - row)
        left = hidden + row * call.hidden_row_bytes
        out = products + row * _TILES * LANES * 4
        tile = 0
        while tile < num_tiles:
            columns = MAX_COLUMNS if num_tiles - tile >= MAX_COLUMNS else 1
            multiply_keys(
                arithmetic,
                rows,
                columns,
                left,
                call.hidden_row_bytes,
                table + tile * 8,
                0,
                num_steps,
                out + tile * LANES * 4,
                _TILES * LANES * 4,
            )
            tile += columns


@compiled
def _write(arithmetic: Any, call: Any, first: int, num_rows: int, first_tile: int, num_tiles: int, sums: int) -> None:
    for row in range(num_rows):
        for tile in range(num_tiles):
            column = (first_tile + tile) * LANES
            number = load(sums + (row * _TILES + tile) * LANES * 4)
            if call.bias != 0:
                number = add(number, load(call.bias + column * 4))
            target = call.output + (first + row) * call.output_row_bytes + column * element_bytes(arithmetic)
            if column + LANES <= call.out_features:
                store_elements(arithmetic, number, target)
            else:
                _store_first(arithmetic, number, target, call.out_features - column)


def _mask(builder: ir.IRBuilder, num_lanes: ir.Value) -> ir.Value:
    lane = ir.Constant(lanes(INT32), [INT32(index) for index in range(LANES)])
    return builder.icmp_signed("<", lane, broadcast(builder, builder.trunc(num_lanes, INT32)))


@arithmetic_instruction(VECTOR, types.int64, types.int64, result=types.void)
def _store_first(
    builder: ir.IRBuilder, arithmetic: Arithmetic, vector: ir.Value, address: ir.Value, num_lanes: ir.Value
) -> None:
    """As `store_elements`, of the first `num_lanes`."""
    kind, name = FLOAT, "f32"
    if not arithmetic.has_float32_elements:
        kind, name = INT16, "i16"
        vector = builder.bitcast(emit_rounded(builder, arithmetic, vector), lanes(INT16))
    pointer = builder.inttoptr(address, lanes(kind).as_pointer())
    call(builder, f"llvm.masked.store.v16{name}.p0", VOID, vector, pointer, INT32(1), _mask(builder, num_lanes))
