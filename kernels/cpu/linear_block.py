"""A few rows times a panel of weights, and what becomes of the sums while they are still in registers.

Each element is one accumulator over the whole depth, added to in order: its value does not depend on how many rows are
computed, nor beside which.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from infer.kernels.cpu.exponential import emit_exp2
from infer.kernels.cpu.llvm import (
    FLOAT,
    INT16,
    INT32,
    INT64,
    LANES,
    VOID,
    arithmetic_instruction,
    broadcast,
    call,
    constant,
    emit_branch,
    emit_prefetch,
    lanes,
    larger,
    load_from,
    offset,
)
from infer.kernels.cpu.operands import emit_rounded, emit_widened
from infer.kernels.cpu.register_block import MAX_COLUMNS, MAX_ROWS, Block

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.kernels.cpu.arithmetic import Arithmetic

_LINE_BYTES = 64
_VECTOR_BYTES = 4 * LANES
_LOWEST = -87.0
"""Below it exp(-x) leaves float32, and silu is as good as 0."""


class Epilogue(enum.Enum):
    """What is stored."""

    PLAIN = "plain"
    ADD = "add"
    """The sum with another tensor of the output's shape and strides."""
    GATE = "gate"
    """`silu(left half) * right half` of each panel."""


def multiplication(epilogue: Epilogue) -> Callable[..., None]:
    """An instruction; see `_multiply` for what it is given."""

    @arithmetic_instruction(*[types.int64] * 11, result=types.void)
    def multiply(
        builder: ir.IRBuilder,
        arithmetic: Arithmetic,
        num_rows: ir.Value,
        left: ir.Value,
        left_bytes: ir.Value,
        panel: ir.Value,
        ahead: ir.Value,
        num_steps: ir.Value,
        bias: ir.Value,
        residual: ir.Value,
        out: ir.Value,
        out_bytes: ir.Value,
        num_columns: ir.Value,
    ) -> None:
        """
        num_rows: 1 to `MAX_ROWS`
        left: address of the first row; `left_bytes` from one row to the next
        panel: address
        ahead: of `num_steps` lines that are brought near meanwhile
        num_steps: the depth, in bfloat16 in pairs
        bias: address of the panel's part
        residual, out: address of the first row's elements in this panel; `out_bytes` from one row to the next
        num_columns: of the output that are left from this panel on
        """
        rest = [left, left_bytes, panel, ahead, num_steps, bias, residual, out, out_bytes, num_columns]

        def call_for(rows: int) -> Callable[[], None]:
            return lambda: builder.call(_function(builder.module, arithmetic, epilogue, rows, len(rest)), rest)

        emit_branch(builder, num_rows, {rows: call_for(rows) for rows in range(1, MAX_ROWS + 1)})

    return multiply


def _function(module: ir.Module, arithmetic: Arithmetic, epilogue: Epilogue, rows: int, num_arguments: int) -> Any:
    """The code for a number of rows, emitted once a module."""
    name = f"infer.linear.{epilogue.name}.{arithmetic.name}.{rows}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(VOID, [INT64] * num_arguments), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    left, left_bytes, panel, ahead, num_steps, bias, *rest = function.args
    block = Block(builder, arithmetic, rows, MAX_COLUMNS, left, left_bytes)
    with cgutils.for_range(builder, num_steps) as loop:
        first = builder.add(panel, builder.mul(loop.index, INT64(MAX_COLUMNS * _VECTOR_BYTES)))
        emit_prefetch(builder, builder.add(ahead, builder.mul(loop.index, INT64(_LINE_BYTES))))
        block.add_products(
            loop.index, [offset(builder, first, column * _VECTOR_BYTES) for column in range(MAX_COLUMNS)]
        )
    _Epilogue(builder, arithmetic, *rest).emit(epilogue, block, bias)
    builder.ret_void()
    return function


class _Epilogue:
    """The end of a product, while its code is written."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        arithmetic: Arithmetic,
        residual: ir.Value,
        out: ir.Value,
        out_bytes: ir.Value,
        num_columns: ir.Value,
    ) -> None:
        self._builder = builder
        self._arithmetic = arithmetic
        self._residual = residual
        self._out = out
        self._out_bytes = out_bytes
        lane = ir.Constant(lanes(INT32), [INT32(index) for index in range(LANES)])
        left = broadcast(builder, builder.trunc(num_columns, INT32))
        self._masks = [
            builder.icmp_signed("<", builder.add(lane, constant(INT32, column * LANES)), left)
            for column in range(MAX_COLUMNS)
        ]

    def emit(self, epilogue: Epilogue, block: Block, bias: ir.Value) -> None:
        builder, half = self._builder, MAX_COLUMNS // 2
        biases = [
            load_from(builder, lanes(FLOAT), offset(builder, bias, column * _VECTOR_BYTES))
            for column in range(MAX_COLUMNS)
        ]
        for row, totals in enumerate(block.totals()):
            distance = builder.mul(self._out_bytes, INT64(row))
            sums = [builder.fadd(total, part) for total, part in zip(totals, biases, strict=True)]
            if epilogue is Epilogue.GATE:
                sums = [self._gated(gate, up) for gate, up in zip(sums[:half], sums[half:], strict=True)]
            for column, vector in enumerate(sums):
                place = offset(builder, distance, column * LANES * self._element_bytes)
                if epilogue is Epilogue.ADD:
                    vector = builder.fadd(self._round(vector), self._load(builder.add(self._residual, place), column))
                self._store(vector, builder.add(self._out, place), column)

    @property
    def _element_bytes(self) -> int:
        return 4 if self._arithmetic.has_float32_elements else 2

    def _gated(self, gate: ir.Value, up: ir.Value) -> ir.Value:
        """As `silu_and_mul` of what a layer would have stored."""
        builder = self._builder
        gate = self._round(gate)
        # In this order a NaN stays one.
        bounded = larger(builder, constant(FLOAT, _LOWEST), gate)
        decay = emit_exp2(builder, builder.fmul(bounded, constant(FLOAT, -math.log2(math.e))))
        activated = self._round(builder.fdiv(bounded, builder.fadd(constant(FLOAT, 1.0), decay)))
        return builder.fmul(activated, self._round(up))

    def _round(self, vector: ir.Value) -> ir.Value:
        if self._arithmetic.has_float32_elements:
            return vector
        builder = self._builder
        return emit_widened(builder, builder.bitcast(emit_rounded(builder, self._arithmetic, vector), lanes(INT16)))

    def _load(self, address: ir.Value, column: int) -> ir.Value:
        builder, kind = self._builder, lanes(INT32 if self._arithmetic.has_float32_elements else INT16)
        pointer = builder.inttoptr(address, kind.as_pointer())
        name = f"llvm.masked.load.v{LANES}i{kind.element.width}.p0"
        nothing = ir.Constant(kind, ir.Undefined)
        loaded = call(builder, name, kind, pointer, INT32(1), self._masks[column], nothing)
        if self._arithmetic.has_float32_elements:
            return builder.bitcast(loaded, lanes(FLOAT))
        return emit_widened(builder, loaded)

    def _store(self, vector: ir.Value, address: ir.Value, column: int) -> None:
        builder, kind = self._builder, lanes(INT32)
        if not self._arithmetic.has_float32_elements:
            vector, kind = emit_rounded(builder, self._arithmetic, vector), lanes(INT16)
        pointer = builder.inttoptr(address, kind.as_pointer())
        name = f"llvm.masked.store.v{LANES}i{kind.element.width}.p0"
        call(builder, name, VOID, builder.bitcast(vector, kind), pointer, INT32(1), self._masks[column])
