"""Sixteen float32 lanes as a value of compiled code, one function an instruction. Addresses need no alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

from infer.kernels.cpu.exponential import emit_exp2, emit_tanh
from infer.kernels.cpu.llvm import (
    BIT,
    FLOAT,
    INT8,
    INT16,
    INT32,
    INT64,
    LANES,
    VOID,
    broadcast,
    call,
    constant,
    emit_prefetch,
    emit_prefetch_to_write,
    fma,
    instruction,
    lanes,
    larger,
    load_from,
    store_to,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class VectorType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name="float32x16")


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: VectorType) -> None:
        super().__init__(manager, numba_type, lanes(FLOAT))


VECTOR = VectorType()

exp2 = instruction(VECTOR, result=VECTOR)(emit_exp2)
tanh = instruction(VECTOR, result=VECTOR)(emit_tanh)
multiply_add = instruction(VECTOR, VECTOR, VECTOR, result=VECTOR)(fma)
maximum = instruction(VECTOR, VECTOR, result=VECTOR)(larger)


@instruction(VECTOR, result=VECTOR)
def hadamard(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """Times the Hadamard matrix: sums and differences of lanes 1 apart, then 2, 4 and 8."""
    undefined = ir.Constant(lanes(FLOAT), ir.Undefined)
    distance = 1
    while distance < LANES:
        order = ir.Constant(lanes(INT32), [INT32(index ^ distance) for index in range(LANES)])
        other = builder.shuffle_vector(vector, undefined, order)
        is_left = ir.Constant(lanes(BIT), [BIT(index & distance == 0) for index in range(LANES)])
        vector = builder.select(is_left, builder.fadd(other, vector), builder.fsub(other, vector))
        distance *= 2
    return vector


@instruction(types.int64, result=VECTOR)
def load_integers(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Of int32, rounded to nearest."""
    return builder.sitofp(load_from(builder, lanes(INT32), address), lanes(FLOAT))


@instruction(VECTOR, types.int64, result=types.void)
def store_shifted_bytes(builder: ir.IRBuilder, vector: ir.Value, address: ir.Value) -> None:
    """Numbers from -128 to 127, rounded to nearest, ties to even, plus 128: as bytes."""
    # A float32 of this size counts in ones: in its lowest bits is the rounded number.
    counted = builder.bitcast(builder.fadd(vector, constant(FLOAT, 1.5 * 2**23)), lanes(INT32))
    store_to(builder, builder.trunc(builder.xor(counted, constant(INT32, 128)), lanes(INT8)), address)


@instruction(types.int64, result=VECTOR)
def load(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return load_from(builder, lanes(FLOAT), address)


@instruction(VECTOR, types.int64, result=types.void)
def store(builder: ir.IRBuilder, vector: ir.Value, address: ir.Value) -> None:
    store_to(builder, vector, address)


@instruction(types.float32, result=VECTOR)
def splat(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    return broadcast(builder, scalar)


@instruction(VECTOR, VECTOR, result=VECTOR)
def add(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    return builder.fadd(left, right)


@instruction(VECTOR, VECTOR, result=VECTOR)
def subtract(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    return builder.fsub(left, right)


@instruction(VECTOR, VECTOR, result=VECTOR)
def multiply(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    return builder.fmul(left, right)


def emit_larger_magnitude(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Of each pair of lanes the larger absolute value; a NaN is larger than all numbers."""
    # Without their signs, floats are in the order of their bits.
    magnitudes = [builder.and_(builder.bitcast(x, lanes(INT32)), constant(INT32, 0x7FFFFFFF)) for x in (left, right)]
    largest = builder.select(builder.icmp_signed(">", *magnitudes), *magnitudes)
    return builder.bitcast(largest, lanes(FLOAT))


larger_magnitude = instruction(VECTOR, VECTOR, result=VECTOR)(emit_larger_magnitude)


@instruction(VECTOR, VECTOR, result=VECTOR)
def divide(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    return builder.fdiv(left, right)


@instruction(VECTOR, types.int64, types.int64, VECTOR, result=VECTOR)
def keep_lanes(builder: ir.IRBuilder, vector: ir.Value, first: ir.Value, end: ir.Value, other: ir.Value) -> ir.Value:
    """Lanes `first` to `end - 1` of `vector`, the others from `other`."""
    lane = ir.Constant(lanes(INT32), [INT32(index) for index in range(LANES)])
    from_first = builder.icmp_signed(">=", lane, broadcast(builder, builder.trunc(first, INT32)))
    before_end = builder.icmp_signed("<", lane, broadcast(builder, builder.trunc(end, INT32)))
    return builder.select(builder.and_(from_first, before_end), vector, other)


@instruction(VECTOR, result=types.float32)
def first_lane(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    return builder.extract_element(vector, INT32(0))


@instruction(VECTOR, VECTOR, result=types.int64)
def first_lane_equal(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """`LANES` where no two are equal."""
    equal = builder.bitcast(builder.fcmp_ordered("==", left, right), INT16)
    # A bit behind the last lane stands for none.
    bits = builder.or_(builder.zext(equal, INT32), INT32(1 << LANES))
    return builder.zext(call(builder, "llvm.cttz.i32", INT32, bits, BIT(1)), INT64)


@instruction(VECTOR, result=types.float32)
def largest_lane(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    return _fold(builder, vector, lambda left, right: larger(builder, left, right))


@instruction(VECTOR, result=types.float32)
def largest_magnitude_of_lanes(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    return _fold(builder, vector, lambda left, right: emit_larger_magnitude(builder, left, right))


@instruction(VECTOR, result=types.float32)
def sum_of_lanes(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    return _fold(builder, vector, builder.fadd)


def _fold(builder: ir.IRBuilder, vector: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Combines halves until one lane is left: always in the same order."""
    undefined = ir.Constant(lanes(FLOAT), ir.Undefined)
    distance = LANES // 2
    while distance > 0:
        order = ir.Constant(lanes(INT32), [INT32((index + distance) % LANES) for index in range(LANES)])
        vector = combine(vector, builder.shuffle_vector(vector, undefined, order))
        distance //= 2
    return builder.extract_element(vector, INT32(0))


@instruction(types.int64, result=types.float32)
def load_float(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return load_from(builder, FLOAT, address)


@instruction(types.float32, types.int64, result=types.void)
def store_float(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    store_to(builder, value, address)


@instruction(types.int64, result=types.int64)
def load_int32(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.sext(load_from(builder, INT32, address), INT64)


@instruction(types.int64, result=types.int64)
def load_int64(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return load_from(builder, INT64, address)


@instruction(types.int64, types.int64, result=types.void)
def store_int64(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    store_to(builder, value, address)


@instruction(types.int64, result=types.void)
def count_up(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Makes the int64 there one larger. Whoever `wait_for`s it sees all that this thread has stored before."""
    builder.atomic_rmw("add", builder.inttoptr(address, INT64.as_pointer()), INT64(1), "release")


@instruction(types.int64, types.int64, result=types.void)
def wait_for(builder: ir.IRBuilder, address: ir.Value, count: ir.Value) -> None:
    """Until the int64 there is `count`."""
    pointer = builder.inttoptr(address, INT64.as_pointer())
    again, end = builder.append_basic_block("again"), builder.append_basic_block("end")
    builder.branch(again)
    builder.position_at_end(again)
    call(builder, "llvm.x86.sse2.pause", VOID)
    builder.cbranch(builder.icmp_signed("<", builder.load_atomic(pointer, "acquire", 8), count), again, end)
    builder.position_at_end(end)


@instruction(types.int64, types.int64, result=types.void)
def copy_word(builder: ir.IRBuilder, source: ir.Value, target: ir.Value) -> None:
    store_to(builder, load_from(builder, INT32, source), target)


@instruction(types.int64, types.int64, result=types.void)
def copy_lanes(builder: ir.IRBuilder, source: ir.Value, target: ir.Value) -> None:
    store_to(builder, load_from(builder, lanes(INT32), source), target)


@instruction(types.int64, types.int64, types.int64, result=types.void)
def spread_half_words(builder: ir.IRBuilder, source: ir.Value, target: ir.Value, high: ir.Value) -> None:
    """Stores sixteen 16-bit words into the upper (`high` is not 0) or lower halves of sixteen 32-bit words. The other
    halves are not even read: another thread may be writing them."""
    emit_spread(builder, load_from(builder, lanes(INT16), source), target, high)


def emit_spread(builder: ir.IRBuilder, halves: ir.Value, target: ir.Value, high: ir.Value) -> None:
    """As `spread_half_words`, from a vector of whatever integers."""
    with builder.if_else(builder.icmp_signed("!=", high, INT64(0))) as (upper, lower):
        for half, begin in enumerate((lower, upper)):
            with begin:
                _store_every_other(builder, halves, target, half)


def _store_every_other(builder: ir.IRBuilder, halves: ir.Value, target: ir.Value, first: int) -> None:
    order = ir.Constant(ir.VectorType(INT32, 2 * LANES), [INT32(index // 2) for index in range(2 * LANES)])
    spread = builder.shuffle_vector(halves, ir.Constant(halves.type, ir.Undefined), order)
    mask = ir.Constant(ir.VectorType(BIT, 2 * LANES), [BIT(index % 2 == first) for index in range(2 * LANES)])
    pointer = builder.inttoptr(target, spread.type.as_pointer())
    name = f"llvm.masked.store.v{2 * LANES}i{halves.type.element.width}.p0"
    call(builder, name, VOID, spread, pointer, INT32(1), mask)


@instruction(types.int64, types.int64, types.int64, result=types.void)
def copy_masked(builder: ir.IRBuilder, source: ir.Value, target: ir.Value, mask: ir.Value) -> None:
    """Copies sixteen 32-bit words, of each only the bits of `mask`."""
    kept = broadcast(builder, builder.trunc(mask, INT32))
    store_to(builder, builder.and_(load_from(builder, lanes(INT32), source), kept), target)


prefetch = instruction(types.int64, result=types.void)(emit_prefetch)
prefetch_to_write = instruction(types.int64, result=types.void)(emit_prefetch_to_write)
