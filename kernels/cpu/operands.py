"""What differs between the arithmetics in memory: the tensors' elements, and the left sides of the products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import types

from infer.kernels.cpu.llvm import (
    FLOAT,
    INT16,
    INT32,
    INT64,
    BFloatType,
    arithmetic_instruction,
    constant,
    lanes,
    load_from,
    store_to,
)
from infer.kernels.cpu.simd import VECTOR

if TYPE_CHECKING:
    from llvmlite import ir

    from infer.kernels.cpu.arithmetic import Arithmetic


@arithmetic_instruction(result=types.int64)
def element_bytes(builder: ir.IRBuilder, arithmetic: Arithmetic) -> ir.Value:
    """Of the query, the cache and the output."""
    return INT64(4 if arithmetic.has_float32_elements else 2)


@arithmetic_instruction(result=types.int64)
def operand_bytes(builder: ir.IRBuilder, arithmetic: Arithmetic) -> ir.Value:
    """Of a query or a weight as the left side of a product."""
    return INT64(2 if arithmetic.has_bfloat16_operands else 4)


@arithmetic_instruction(result=types.int64)
def depth_of_step(builder: ir.IRBuilder, arithmetic: Arithmetic) -> ir.Value:
    """Elements in a 32-bit word of the cache: dimensions of a key, tokens of a value."""
    return INT64(1 if arithmetic.has_float32_elements else 2)


@arithmetic_instruction(types.int64, result=VECTOR)
def load_elements(builder: ir.IRBuilder, arithmetic: Arithmetic, address: ir.Value) -> ir.Value:
    if arithmetic.has_float32_elements:
        return load_from(builder, lanes(FLOAT), address)
    return emit_widened(builder, load_from(builder, lanes(INT16), address))


@arithmetic_instruction(VECTOR, result=VECTOR)
def round_elements(builder: ir.IRBuilder, arithmetic: Arithmetic, vector: ir.Value) -> ir.Value:
    """What storing and loading the elements would make of them."""
    if arithmetic.has_float32_elements:
        return vector
    return emit_widened(builder, builder.bitcast(emit_rounded(builder, arithmetic, vector), lanes(INT16)))


@arithmetic_instruction(VECTOR, types.int64, result=types.void)
def store_elements(builder: ir.IRBuilder, arithmetic: Arithmetic, vector: ir.Value, address: ir.Value) -> None:
    store_to(builder, vector if arithmetic.has_float32_elements else emit_rounded(builder, arithmetic, vector), address)


@arithmetic_instruction(VECTOR, types.int64, result=types.void)
def store_exact(builder: ir.IRBuilder, arithmetic: Arithmetic, vector: ir.Value, address: ir.Value) -> None:
    """As `store_elements`, of numbers that need no rounding."""
    if not arithmetic.has_float32_elements:
        bits = builder.lshr(builder.bitcast(vector, lanes(INT32)), constant(INT32, 16))
        vector = builder.trunc(bits, lanes(INT16))
    store_to(builder, vector, address)


@arithmetic_instruction(VECTOR, types.int64, result=types.void)
def store_operands(builder: ir.IRBuilder, arithmetic: Arithmetic, vector: ir.Value, address: ir.Value) -> None:
    store_to(
        builder, emit_rounded(builder, arithmetic, vector) if arithmetic.has_bfloat16_operands else vector, address
    )


def emit_rounded(builder: ir.IRBuilder, arithmetic: Arithmetic, vector: ir.Value) -> ir.Value:
    """To bfloat16: to nearest, ties to even."""
    if arithmetic.has_bfloat16_operands:
        return builder.fptrunc(vector, lanes(BFloatType()))
    # Without an instruction for it LLVM would call a library function that is not there.
    bits = builder.bitcast(vector, lanes(INT32))
    odd = builder.and_(builder.lshr(bits, constant(INT32, 16)), constant(INT32, 1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, constant(INT32, 0x7FFF))), constant(INT32, 16))
    quiet_nan = constant(INT32, 0x7FC0)
    is_nan = builder.fcmp_unordered("uno", vector, vector)
    return builder.trunc(builder.select(is_nan, quiet_nan, rounded), lanes(INT16))


def emit_widened(builder: ir.IRBuilder, halves: ir.Value) -> ir.Value:
    bits = builder.shl(builder.zext(halves, lanes(INT32)), constant(INT32, 16))
    return builder.bitcast(bits, lanes(FLOAT))
