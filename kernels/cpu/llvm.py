"""LLVM code from Python: what numba does not say by itself, as functions for compiled code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from numba import types

LANES = 16
"""Float32 lanes of a vector: one 512-bit register, or two of 256."""

VOID = ir.VoidType()
BIT = ir.IntType(1)
FLOAT = ir.FloatType()
INT8 = ir.IntType(8)
INT16 = ir.IntType(16)
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)


class BFloatType(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not know."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloatType)

    def __hash__(self) -> int:
        return hash(BFloatType)


def lanes(scalar: ir.Type) -> ir.VectorType:
    return ir.VectorType(scalar, LANES)


def constant(scalar: ir.Type, value: float) -> ir.Constant:
    """`value` in every lane."""
    return ir.Constant(lanes(scalar), [scalar(value)] * LANES)


def broadcast(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    undefined = ir.Constant(lanes(scalar.type), ir.Undefined)
    first = builder.insert_element(undefined, scalar, INT32(0))
    return builder.shuffle_vector(first, undefined, constant(INT32, 0))


def load_from(builder: ir.IRBuilder, kind: ir.Type, address: ir.Value) -> ir.Value:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


def store_to(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def offset(builder: ir.IRBuilder, address: ir.Value, num_bytes: int) -> ir.Value:
    return builder.add(address, INT64(num_bytes))


def emit_prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Starts to bring the cache line at `address` near."""
    _emit_prefetch(builder, address, INT32(0))


def emit_prefetch_to_write(builder: ir.IRBuilder, address: ir.Value) -> None:
    """As `emit_prefetch`, and takes the line away from other cores."""
    _emit_prefetch(builder, address, INT32(1))


def _emit_prefetch(builder: ir.IRBuilder, address: ir.Value, is_write: ir.Value) -> None:
    nearest, data = INT32(3), INT32(1)
    call(builder, "llvm.prefetch.p0", VOID, builder.inttoptr(address, INT8.as_pointer()), is_write, nearest, data)


def larger(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Of each pair of lanes; a NaN on the right stays."""
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def smaller(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Of each pair of lanes; a NaN on the right stays."""
    return builder.select(builder.fcmp_ordered("<", left, right), left, right)


def fma(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, addend: ir.Value) -> ir.Value:
    """left * right + addend, rounded once."""
    return call(builder, "llvm.fma.v16f32", lanes(FLOAT), left, right, addend)


def call(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
    """Calls an intrinsic of LLVM."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def emit_branch(builder: ir.IRBuilder, value: ir.Value, cases: dict[int, Callable[[], None]]) -> None:
    """Emits the cases; `value` says at run time which of them is done."""
    end = builder.append_basic_block("end")
    switch = builder.switch(value, end)
    for number, emit in cases.items():
        block = builder.append_basic_block(f"case{number}")
        switch.add_case(INT64(number), block)
        builder.position_at_end(block)
        emit()
        builder.branch(end)
    builder.position_at_end(end)


Emit = Callable[..., ir.Value | None]


def instruction(*parameters: types.Type, result: types.Type) -> Callable[[Emit], Callable[..., Any]]:
    """Makes `emit(builder, *values)` a function of compiled code with these numba types."""

    def decorate(emit: Emit) -> Callable[..., Any]:
        # numba counts the parameters of the wrapped function: there, too, one stands before the values.
        @functools.wraps(emit)
        def typed(typing_context: Any, *_: types.Type) -> tuple[Any, Any]:
            return result(*parameters), _code(emit)

        made: Callable[..., Any] = intrinsic(typed)
        return made

    return decorate


def arithmetic_instruction(*parameters: types.Type, result: types.Type) -> Callable[[Emit], Callable[..., Any]]:
    """Makes `emit(builder, arithmetic, *values)` a function of compiled code whose first argument is an arithmetic,
    known when the code is emitted."""

    def decorate(emit: Emit) -> Callable[..., Any]:
        @functools.wraps(emit)
        def typed(typing_context: Any, arithmetic: Any, *_: types.Type) -> tuple[Any, Any]:
            def emit_known(builder: ir.IRBuilder, _: ir.Value, *values: ir.Value) -> ir.Value | None:
                return emit(builder, arithmetic.arithmetic, *values)

            return result(arithmetic, *parameters), _code(emit_known)

        made: Callable[..., Any] = intrinsic(typed)
        return made

    return decorate


def _code(emit: Emit) -> Callable[..., ir.Value]:
    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Sequence[ir.Value]) -> ir.Value:
        emitted = emit(builder, *values)
        return context.get_dummy_value() if emitted is None else emitted

    return code
