"""quant_linear on a CPU, in int8: what it computes is said in `infer.kernels.quant_linear`.

Tokens are stored with 128 added, as unsigned bytes, because that is what the instruction takes on its left. What it
adds to a sum is known when a weight is packed, and where every sum begins.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import torch
from torch.nn.functional import pad

from infer.kernels.cpu.compiler import compile_worker, compiled
from infer.kernels.cpu.dot_product import GROUP, DotProduct, available_dot_products
from infer.kernels.cpu.int8_block import MAX_ROWS, PANEL_COLUMNS, SUM_ROW_BYTES, multiply_panel, sums_on_stack
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements, round_elements, store_elements
from infer.kernels.cpu.record import take_unit
from infer.kernels.cpu.row_wise import element_arithmetic
from infer.kernels.cpu.simd import add, load, load_float, load_integers, multiply, splat
from infer.kernels.cpu.threads import run

if TYPE_CHECKING:
    from infer.kernels.cpu.arithmetic import Arithmetic
    from infer.kernels.cpu.compiler import Worker
    from infer.kernels.quantized_operands import QuantizedTokens, QuantizedWeight

ZERO_POINT = 128

_UNITS_PER_THREAD = 8
"""At least, where there are rows enough: then no thread waits long for the last."""

_FLOAT_BYTES = 4


class Product(NamedTuple):
    """One call. Tensors are addresses."""

    elements: int
    row_bytes: int
    """From one row of elements to the next."""
    token_scales: int
    panels: int
    panel_bytes: int
    offsets: int
    channel_scales: int
    bias: int
    """In the dtype of the output, or 0."""
    residual: int
    """Laid out as the output, or 0."""
    output: int
    num_columns: int
    """Of the output in memory: whole vectors."""
    num_steps: int
    num_panels: int
    num_rows: int
    rows_at_once: int
    num_blocks: int
    """Of so many rows. A unit of work is a block of rows with the columns of a panel."""


def pack_weight(weight: QuantizedWeight) -> QuantizedWeight:
    """Elements `[panel, depth / 4, column, 4]`, filled up with zeros; offsets and scales by column."""
    columns = -weight.out_features % PANEL_COLUMNS
    elements = pad(weight.elements, (0, -weight.in_features % LANES, 0, columns))
    panels = elements.view(-1, PANEL_COLUMNS, elements.shape[1] // GROUP, GROUP).transpose(1, 2).contiguous()
    offsets = -ZERO_POINT * elements.sum(1, dtype=torch.int32)
    return replace(weight, elements=panels, scales=pad(weight.scales, (0, columns)), offsets=offsets.contiguous())


def quant_linear(
    tokens: QuantizedTokens,
    weight: QuantizedWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    dtype: torch.dtype,
    dot_product: DotProduct | None = None,
) -> torch.Tensor:
    """A row's output does not depend on the others.

    dot_product: the fastest that the CPU has, unless given
    """
    elements, panels, offsets = tokens.elements.contiguous(), weight.elements, weight.offsets
    assert elements.dtype is torch.uint8, elements.dtype
    assert offsets is not None
    num_rows, filling = tokens.scales.numel(), -weight.out_features % LANES
    output = torch.empty((*tokens.scales.shape, weight.out_features + filling), dtype=dtype)
    if filling and bias is not None:
        bias = pad(bias, (0, filling))
    if residual is not None:
        residual = pad(residual, (0, filling)) if filling else residual.contiguous()
    num_threads, num_panels = torch.get_num_threads(), panels.shape[0]
    num_blocks = min(-(-num_rows // MAX_ROWS), -(-_UNITS_PER_THREAD * num_threads // num_panels))
    rows_at_once = -(-num_rows // max(1, num_blocks * MAX_ROWS)) * MAX_ROWS
    num_blocks = -(-num_rows // max(1, rows_at_once))
    fields = (
        elements.data_ptr(),
        elements.shape[-1],
        tokens.scales.data_ptr(),
        panels.data_ptr(),
        panels.stride()[0],
        offsets.data_ptr(),
        weight.scales.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        output.data_ptr(),
        output.shape[-1],
        panels.shape[1],
        num_panels,
        num_rows,
        rows_at_once,
        num_blocks,
    )
    if num_rows:
        worker = _worker(element_arithmetic(dtype), dot_product or available_dot_products()[0])
        run(worker, fields, min(num_threads, num_blocks * num_panels))
    return output[..., : weight.out_features] if filling else output


@functools.cache
def _worker(arithmetic: Arithmetic, dot_product: DotProduct) -> Worker:
    def work(pointer: Any) -> None:
        call = numba.carray(pointer, 1)[0]
        sums = sums_on_stack()
        while True:
            unit = take_unit(call)
            panel = unit // call.num_blocks
            if panel >= call.num_panels:
                return
            first = unit % call.num_blocks * call.rows_at_once
            end = min(first + call.rows_at_once, call.num_rows)
            for row in range(first, end, MAX_ROWS):
                _multiply(arithmetic, dot_product, call, panel, row, min(MAX_ROWS, end - row), sums)

    return compile_worker(work, Product)


@compiled
def _multiply(
    arithmetic: Any, dot_product: Any, call: Any, panel: int, first_row: int, num_rows: int, sums: int
) -> None:
    multiply_panel(
        dot_product,
        num_rows,
        call.elements + first_row * call.row_bytes,
        call.row_bytes,
        call.panels + panel * call.panel_bytes,
        call.num_steps,
        call.offsets + panel * SUM_ROW_BYTES,
        sums,
    )
    first_column = panel * PANEL_COLUMNS
    num_columns = min(PANEL_COLUMNS, call.num_columns - first_column)
    for row in range(num_rows):
        token_scale = load_float(call.token_scales + (first_row + row) * _FLOAT_BYTES)
        begin = (first_row + row) * call.num_columns + first_column
        for column in range(0, num_columns, LANES):
            at_sums = sums + row * SUM_ROW_BYTES + column * _FLOAT_BYTES
            scaled = multiply(load_integers(at_sums), splat(token_scale))
            scales = load(call.channel_scales + (first_column + column) * _FLOAT_BYTES)
            _store(arithmetic, call, multiply(scaled, scales), begin + column, first_column + column)


@compiled
def _store(arithmetic: Any, call: Any, vector: Any, place: int, column: int) -> None:
    size = element_bytes(arithmetic)
    if call.bias != 0:
        vector = add(vector, load_elements(arithmetic, call.bias + column * size))
    if call.residual != 0:
        # Rounded before, as the definition has it.
        rounded = round_elements(arithmetic, vector)
        vector = add(rounded, load_elements(arithmetic, call.residual + place * size))
    store_elements(arithmetic, vector, call.output + place * size)
