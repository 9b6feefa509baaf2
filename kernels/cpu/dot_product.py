"""How sums of products of bytes are computed, by what the CPU can do. All of them give the same integers."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.extending import typeof_impl

from infer.kernels.cpu.arithmetic import ArithmeticType, has_cpu_feature
from infer.kernels.cpu.llvm import INT8, INT16, INT32, LANES, broadcast, call, constant, lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = 4
"""Products that are added up in a lane at a time."""

_HALF = LANES // 2


class DotProduct(enum.Enum):
    """Unsigned bytes on the left, signed ones on the right, int32 sums."""

    VNNI_512 = "vnni of 512 bits"
    VNNI_256 = "vnni of 256 bits"
    WIDENED = "bytes widened to words"
    """In multiplications of 16 bits: for CPUs without an instruction for bytes."""


@functools.cache
def available_dot_products() -> tuple[DotProduct, ...]:
    """What this CPU can do, the fastest first."""
    found = [DotProduct.WIDENED]
    if has_cpu_feature("avxvnni") or (has_cpu_feature("avx512vnni") and has_cpu_feature("avx512vl")):
        found.insert(0, DotProduct.VNNI_256)
    if has_cpu_feature("avx512vnni"):
        found.insert(0, DotProduct.VNNI_512)
    return tuple(found)


def emit_prepared(builder: ir.IRBuilder, dot_product: DotProduct, right: ir.Value) -> Sequence[ir.Value]:
    """`right`, 16 groups of bytes as int32 lanes, in the form in which it is multiplied with several lefts."""
    if dot_product is not DotProduct.WIDENED:
        return [right]
    words = builder.bitcast(right, _words())
    eight = ir.Constant(_words(), [INT16(8)] * (2 * LANES))
    return [builder.ashr(builder.shl(words, eight), eight), builder.ashr(words, eight)]


def emit_add_products(
    builder: ir.IRBuilder, dot_product: DotProduct, sums: ir.Value, left: ir.Value, right: Sequence[ir.Value]
) -> ir.Value:
    """`sums`, to each lane of which the products of the group `left`, an int32, and its group in `right` are added."""
    spread = broadcast(builder, left)
    if dot_product is DotProduct.VNNI_512:
        return _vnni(builder, LANES, sums, spread, right[0])
    if dot_product is DotProduct.VNNI_256:
        halves = [
            _vnni(builder, _HALF, *(_half(builder, each, first) for each in (sums, spread, right[0])))
            for first in (0, _HALF)
        ]
        return builder.shuffle_vector(*halves, ir.Constant(lanes(INT32), [INT32(index) for index in range(LANES)]))
    mask = constant(INT32, 0x00FF00FF)
    lefts = [builder.and_(spread, mask), builder.and_(builder.lshr(spread, constant(INT32, 8)), mask)]
    for left_words, right_words in zip(lefts, right, strict=True):
        sums = builder.add(sums, _sum_of_pairs(builder, builder.bitcast(left_words, _words()), right_words))
    return sums


def _vnni(builder: ir.IRBuilder, num_lanes: int, sums: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
    groups = ir.VectorType(INT8, GROUP * num_lanes)
    name = f"llvm.x86.avx512.vpdpbusd.{32 * num_lanes}"
    return call(builder, name, sums.type, sums, builder.bitcast(left, groups), builder.bitcast(right, groups))


def _half(builder: ir.IRBuilder, vector: ir.Value, first: int) -> ir.Value:
    order = ir.Constant(ir.VectorType(INT32, _HALF), [INT32(first + index) for index in range(_HALF)])
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), order)


def _sum_of_pairs(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """int32 sums of the products of neighbouring words: the form that LLVM knows an instruction for on most CPUs."""
    wide = ir.VectorType(INT32, 2 * LANES)
    products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    undefined = ir.Constant(wide, ir.Undefined)
    even, odd = (
        builder.shuffle_vector(
            products, undefined, ir.Constant(lanes(INT32), [INT32(2 * index + first) for index in range(LANES)])
        )
        for first in (0, 1)
    )
    return builder.add(even, odd)


def _words() -> ir.VectorType:
    return ir.VectorType(INT16, 2 * LANES)


@typeof_impl.register(DotProduct)  # type: ignore[untyped-decorator]
def _typeof_dot_product(value: DotProduct, context: Any) -> ArithmeticType:
    return ArithmeticType(value)
