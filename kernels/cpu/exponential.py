"""exp2 and tanh of a vector, within four units in the last place of float32.

Both split `2**x` into a power of two and `2**r` with `|r| <= 0.5`. The polynomial gives `2**r - 1`, so that small
results of tanh keep their relative accuracy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.cpu.llvm import FLOAT, INT32, call, constant, fma, lanes, larger, smaller

if TYPE_CHECKING:
    from llvmlite import ir

# Minimax for (2**r - 1) / r, highest power first: relative error 1.1e-8.
_COEFFICIENTS = (
    0.00015403512758905064,
    0.0013390735478221061,
    0.009618237493738566,
    0.055503574336348414,
    0.24022649794966416,
    0.6931471879266932,
)

_SMALLEST_EXPONENT = -126.0
_TWO_LOG2_E = 2.885390081777927
_SATURATED = 15.0
"""From here on tanh is 1 in float32."""


def emit_exp2(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2**x for x up to 127; 0 below -126."""
    power, grown = _split(builder, x)
    is_tiny = builder.fcmp_ordered("<", x, constant(FLOAT, _SMALLEST_EXPONENT))
    return builder.select(is_tiny, constant(FLOAT, 0.0), fma(builder, grown, power, power))


def emit_tanh(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """(e**2x - 1) / (e**2x + 1)"""
    bounded = larger(builder, constant(FLOAT, -_SATURATED), smaller(builder, constant(FLOAT, _SATURATED), x))
    power, grown = _split(builder, builder.fmul(bounded, constant(FLOAT, _TWO_LOG2_E)))
    numerator = fma(builder, grown, power, builder.fsub(power, constant(FLOAT, 1.0)))
    return builder.fdiv(numerator, builder.fadd(numerator, constant(FLOAT, 2.0)))


def _split(builder: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """A power of two `p` and `g` such that `2**x` is `p + p * g`."""
    whole = call(builder, "llvm.nearbyint.v16f32", lanes(FLOAT), x)
    rest = builder.fsub(x, whole)
    total = constant(FLOAT, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        total = fma(builder, total, rest, constant(FLOAT, coefficient))
    biased = builder.add(builder.fptosi(whole, lanes(INT32)), constant(INT32, 127))
    power = builder.bitcast(builder.shl(biased, constant(INT32, 23)), lanes(FLOAT))
    return power, builder.fmul(total, rest)
