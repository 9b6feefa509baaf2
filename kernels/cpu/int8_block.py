"""Products of int8 matrices in vector registers: a few rows by a few vectors of columns, over the whole depth.

    sums[row, column] = offsets[column] + sum over depth of  left[row, depth] * right[depth, column]

Left rows are unsigned bytes; right is a panel: of four depths at a time, the bytes of 64 columns.

    panel   depth 0 1 2 3 of column 0 | depth 0 1 2 3 of column 1 | ... column 63 | depth 4 5 6 7 of column 0 | ...
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types
from numba.core import cgutils

from infer.kernels.cpu.arithmetic import has_cpu_feature
from infer.kernels.cpu.dot_product import GROUP, emit_add_products, emit_prepared
from infer.kernels.cpu.llvm import (
    INT8,
    INT32,
    INT64,
    LANES,
    VOID,
    arithmetic_instruction,
    emit_branch,
    instruction,
    lanes,
    load_from,
    offset,
    store_to,
)

if TYPE_CHECKING:
    from infer.kernels.cpu.dot_product import DotProduct

MAX_ROWS = 6
PANEL_COLUMNS = 64
_PANEL_VECTORS = PANEL_COLUMNS // LANES
MAX_VECTORS = 4 if has_cpu_feature("avx512f") else 1
"""Of columns at once. 6 x 4 sums, 4 vectors and a group fit the 32 registers of AVX-512, 6 x 1 sums of two registers
each the 16 of AVX2."""

_VECTOR_BYTES = GROUP * LANES
_STEP_BYTES = GROUP * PANEL_COLUMNS
SUM_ROW_BYTES = 4 * PANEL_COLUMNS


@instruction(result=types.int64)
def sums_on_stack(builder: ir.IRBuilder) -> ir.Value:
    """Address of memory for the sums of a block, which is the calling function's as long as it runs."""
    memory = cgutils.alloca_once(builder, ir.ArrayType(INT8, MAX_ROWS * SUM_ROW_BYTES))
    return builder.ptrtoint(memory, INT64)


@arithmetic_instruction(*[types.int64] * 7, result=types.void)
def multiply_panel(
    builder: ir.IRBuilder,
    dot_product: DotProduct,
    num_rows: ir.Value,
    left: ir.Value,
    left_bytes: ir.Value,
    panel: ir.Value,
    num_steps: ir.Value,
    offsets: ir.Value,
    sums: ir.Value,
) -> None:
    """Sums of at most `MAX_ROWS` rows with the columns of a panel.

    left: address of the first row, `left_bytes` from one to the next
    num_steps: depth by 4
    offsets: address of int32 `[64]`
    sums: address of int32 `[num_rows, 64]`
    """
    rest = (left, left_bytes, panel, num_steps, offsets, sums)

    def emit_call(rows: int) -> None:
        for vector in range(0, _PANEL_VECTORS, MAX_VECTORS):
            builder.call(_function(builder.module, dot_product, rows, vector), rest)

    emit_branch(builder, num_rows, {rows: functools.partial(emit_call, rows) for rows in range(1, MAX_ROWS + 1)})


def _function(module: ir.Module, dot_product: DotProduct, rows: int, first_vector: int) -> ir.Function:
    """The code for one shape, emitted once a module."""
    name = f"infer.multiply_panel.{dot_product.name}.{rows}.{first_vector}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(VOID, [INT64] * 6), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    _emit(builder, dot_product, rows, first_vector, *function.args)
    builder.ret_void()
    return function


def _emit(
    builder: ir.IRBuilder,
    dot_product: DotProduct,
    rows: int,
    first_vector: int,
    left: ir.Value,
    left_bytes: ir.Value,
    panel: ir.Value,
    num_steps: ir.Value,
    offsets: ir.Value,
    sums: ir.Value,
) -> None:
    left_rows = [builder.add(left, builder.mul(left_bytes, INT64(row))) for row in range(rows)]
    distances = [_VECTOR_BYTES * vector for vector in range(first_vector, first_vector + MAX_VECTORS)]
    begin = [load_from(builder, lanes(INT32), offset(builder, offsets, distance)) for distance in distances]
    totals = [[cgutils.alloca_once_value(builder, each) for each in begin] for _ in range(rows)]
    with cgutils.for_range(builder, num_steps) as loop:
        step = builder.add(panel, builder.mul(loop.index, INT64(_STEP_BYTES)))
        loaded = [load_from(builder, lanes(INT32), offset(builder, step, distance)) for distance in distances]
        rights = [emit_prepared(builder, dot_product, each) for each in loaded]
        depth = builder.mul(loop.index, INT64(GROUP))
        for left_row, row_totals in zip(left_rows, totals, strict=True):
            group = load_from(builder, INT32, builder.add(left_row, depth))
            for right, total in zip(rights, row_totals, strict=True):
                builder.store(emit_add_products(builder, dot_product, builder.load(total), group, right), total)
    for row, row_totals in enumerate(totals):
        for distance, total in zip(distances, row_totals, strict=True):
            store_to(builder, builder.load(total), offset(builder, sums, row * SUM_ROW_BYTES + distance))
