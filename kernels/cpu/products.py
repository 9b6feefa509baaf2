"""The two matrix products of attention over tiles of the cache, in whichever arithmetic the caller hands in.

`arithmetic` is known when a call is compiled; everything else is an integer at run time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types

from infer.kernels.cpu import register_block, tile_registers
from infer.kernels.cpu.arithmetic import Arithmetic
from infer.kernels.cpu.llvm import INT64, VOID, arithmetic_instruction, emit_branch
from infer.kernels.cpu.register_block import MAX_COLUMNS, Values

if TYPE_CHECKING:
    from collections.abc import Callable


@arithmetic_instruction(*[types.int64] * 9, result=types.void)
def multiply_keys(
    builder: ir.IRBuilder,
    arithmetic: Arithmetic,
    num_rows: ir.Value,
    num_columns: ir.Value,
    queries: ir.Value,
    query_bytes: ir.Value,
    key_tiles: ir.Value,
    ahead: ir.Value,
    num_steps: ir.Value,
    scores: ir.Value,
    score_bytes: ir.Value,
) -> None:
    """Scores of `num_rows` queries with the 16 keys of each of `num_columns` tiles, which are 1 or `MAX_COLUMNS`.

    queries, scores: address of the first row; `query_bytes`, `score_bytes` from one row to the next
    key_tiles: address of a table of the tiles' addresses
    ahead: address of a table of the tiles to bring near meanwhile, one for each in `key_tiles`; or 0
    num_steps: words in a key: dimensions in float32, pairs of them in bfloat16
    """
    rest = (queries, query_bytes, key_tiles, ahead, num_steps, scores, score_bytes)
    _KEYS.emit(builder, arithmetic, num_rows, num_columns, *rest)


@arithmetic_instruction(*[types.int64] * 11, result=types.void)
def multiply_values(
    builder: ir.IRBuilder,
    arithmetic: Arithmetic,
    num_rows: ir.Value,
    num_columns: ir.Value,
    weights: ir.Value,
    weight_bytes: ir.Value,
    value_tiles: ir.Value,
    ahead: ir.Value,
    num_tiles: ir.Value,
    value_bytes: ir.Value,
    column_offset: ir.Value,
    out: ir.Value,
    out_bytes: ir.Value,
) -> None:
    """Sums of the values in `num_tiles` tiles with the weights of each of `num_rows` rows. They are computed for
    `num_columns` times 16 dimensions, where that is 1 or `MAX_COLUMNS`.

    weights, out: address of the first row; `weight_bytes`, `out_bytes` from one row to the next
    value_tiles: address of a table of the tiles' addresses
    ahead: address of a table of the tiles to bring near meanwhile, one for each in `value_tiles`; or 0
    value_bytes: from one row of a tile to the next
    column_offset: bytes before the first column in a row of a tile
    """
    rest = (weights, weight_bytes, value_tiles, ahead, num_tiles, value_bytes, column_offset, out, out_bytes)
    _VALUES.emit(builder, arithmetic, num_rows, num_columns, *rest)


@arithmetic_instruction(types.int64, result=types.int64)
def rows_at_once(builder: ir.IRBuilder, arithmetic: Arithmetic, num_rows: ir.Value) -> ir.Value:
    """How many of `num_rows` rows the next product takes. In tile registers it is always 16, in memory that must be
    there even if fewer are left."""
    if arithmetic is Arithmetic.BFLOAT16_TILES:
        return INT64(tile_registers.ROWS)
    most = INT64(register_block.MAX_ROWS)
    return builder.select(builder.icmp_signed("<", num_rows, most), num_rows, most)


@arithmetic_instruction(result=types.void)
def begin_products(builder: ir.IRBuilder, arithmetic: Arithmetic) -> None:
    """Prepares this thread's registers."""
    if arithmetic is Arithmetic.BFLOAT16_TILES:
        tile_registers.emit_configure(builder)


@arithmetic_instruction(result=types.void)
def end_products(builder: ir.IRBuilder, arithmetic: Arithmetic) -> None:
    """Leaves the registers as they were."""
    if arithmetic is Arithmetic.BFLOAT16_TILES:
        tile_registers.emit_release(builder)


@dataclass(frozen=True, slots=True)
class _Product:
    name: str
    emit_block: Callable[[ir.IRBuilder, Arithmetic, int, int, Values], None]
    emit_tiles: Callable[[ir.IRBuilder, int, Values], None]

    def emit(
        self, builder: ir.IRBuilder, arithmetic: Arithmetic, num_rows: ir.Value, num_columns: ir.Value, *rest: ir.Value
    ) -> None:
        """Branches to the function for the shape at hand."""
        has_tiles = arithmetic is Arithmetic.BFLOAT16_TILES
        row_counts = [tile_registers.ROWS] if has_tiles else range(1, register_block.MAX_ROWS + 1)

        def call(rows: int, columns: int) -> None:
            builder.call(self._function(builder.module, arithmetic, rows, columns, len(rest)), rest)

        def call_for_rows(columns: int) -> None:
            emit_branch(builder, num_rows, {rows: functools.partial(call, rows, columns) for rows in row_counts})

        column_counts = {1, MAX_COLUMNS}
        emit_branch(
            builder, num_columns, {columns: functools.partial(call_for_rows, columns) for columns in column_counts}
        )

    def _function(
        self, module: ir.Module, arithmetic: Arithmetic, rows: int, columns: int, num_arguments: int
    ) -> ir.Function:
        """The code for one shape, emitted once a module."""
        name = f"infer.{self.name}.{arithmetic.name}.{rows}x{columns}"
        if name in module.globals:
            return module.globals[name]
        function = ir.Function(module, ir.FunctionType(VOID, [INT64] * num_arguments), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        if arithmetic is Arithmetic.BFLOAT16_TILES:
            self.emit_tiles(builder, columns, list(function.args))
        else:
            self.emit_block(builder, arithmetic, rows, columns, list(function.args))
        builder.ret_void()
        return function


_KEYS = _Product("multiply_keys", register_block.emit_multiply_keys, tile_registers.emit_multiply_keys)
_VALUES = _Product("multiply_values", register_block.emit_multiply_values, tile_registers.emit_multiply_values)
