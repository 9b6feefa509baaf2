"""Grouped weights as the right side of a product: a span of columns of one tile becomes `[columns][16]` in float32, or
`[columns / 2][16][2]` in bfloat16. What the codes mean is said in `infer.kernels.grouped_weight`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numpy import float32

from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.llvm import (
    FLOAT,
    INT8,
    INT16,
    INT32,
    INT64,
    LANES,
    BFloatType,
    arithmetic_instruction,
    broadcast,
    call,
    constant,
    instruction,
    lanes,
    load_from,
    offset,
    store_to,
)
from infer.kernels.cpu.operands import element_bytes, emit_rounded
from infer.kernels.cpu.simd import VECTOR, load, multiply, multiply_add, splat

if TYPE_CHECKING:
    from infer.kernels.cpu.arithmetic import Arithmetic


@compiled
def dequantize_tile(arithmetic: Any, weight: Any, tile: int, start: int, end: int, target: int) -> None:
    """Columns `start` to `end - 1`, multiples of 16, of tile `tile`. `weight` is a record that begins like
    `dequant_linear.Call`."""
    num_groups = weight.in_features // weight.group
    num_scales = num_groups // weight.groups_per_scale
    zero = splat(float32(-weight.zero))
    step = 2 * LANES * element_bytes(arithmetic)
    group = start // weight.group
    # Counted along, not divided anew for each group.
    scale_index = group // weight.groups_per_scale
    groups_left = (scale_index + 1) * weight.groups_per_scale - group
    column, stop = start, (group + 1) * weight.group
    while column < end:
        stop = min(stop, end)
        scale_at = (tile * num_scales + scale_index) * LANES * weight.scale_bytes
        factor_at = (tile * num_groups + group) * LANES
        scale = _load_scale(weight, weight.scales + scale_at)
        if weight.scale_factors != 0:
            scale = multiply(scale, _load_int8(weight.scale_factors + factor_at))
        least = multiply(scale, zero)
        if weight.minimums != 0:
            least = _load_scale(weight, weight.minimums + scale_at)
            if weight.minimum_factors != 0:
                least = multiply(least, _load_int8(weight.minimum_factors + factor_at))
        scales, leasts = (_twice(scale, 0), _twice(scale, 1)), (_twice(least, 0), _twice(least, 1))
        num_pairs, first_pair = (stop - column) // 2, (tile * weight.in_features + column) // 2
        if weight.code_bits == 4:
            _dequantize_four_bits(arithmetic, weight, first_pair, num_pairs, scales, leasts, target)
        elif weight.code_bits == 6:
            _dequantize_six_bits(arithmetic, weight, first_pair, num_pairs, scales, leasts, target)
        else:
            _dequantize_eight_bits(arithmetic, weight, first_pair, num_pairs, scales, leasts, target)
        target += num_pairs * step
        column, stop, group = stop, stop + weight.group, group + 1
        groups_left -= 1
        if groups_left == 0:
            groups_left, scale_index = weight.groups_per_scale, scale_index + 1


@compiled
def _dequantize_four_bits(
    arithmetic: Any, weight: Any, first_pair: int, num_pairs: int, scales: Any, leasts: Any, target: int
) -> None:
    codes = weight.codes + first_pair * LANES
    for pair in range(num_pairs):
        first = multiply_add(_load_lower(codes + pair * LANES), scales[0], leasts[0])
        last = multiply_add(_load_upper(codes + pair * LANES), scales[1], leasts[1])
        _store_pair(arithmetic, first, last, target + pair * 2 * LANES * element_bytes(arithmetic))


@compiled
def _dequantize_six_bits(
    arithmetic: Any, weight: Any, first_pair: int, num_pairs: int, scales: Any, leasts: Any, target: int
) -> None:
    codes, high = weight.codes + first_pair * LANES, weight.high + first_pair // 2 * LANES
    for pair in range(num_pairs):
        lower, upper, shift = codes + pair * LANES, high + pair // 2 * LANES, pair % 2 * 4
        first = multiply_add(_load_six_bits(lower, upper, 0, shift), scales[0], leasts[0])
        last = multiply_add(_load_six_bits(lower, upper, 4, shift + 2), scales[1], leasts[1])
        _store_pair(arithmetic, first, last, target + pair * 2 * LANES * element_bytes(arithmetic))


@compiled
def _dequantize_eight_bits(
    arithmetic: Any, weight: Any, first_pair: int, num_pairs: int, scales: Any, leasts: Any, target: int
) -> None:
    codes = weight.codes + first_pair * 2 * LANES
    for pair in range(num_pairs):
        first = multiply_add(_load_int8(codes + pair * 2 * LANES), scales[0], leasts[0])
        last = multiply_add(_load_int8(codes + pair * 2 * LANES + LANES), scales[1], leasts[1])
        _store_pair(arithmetic, first, last, target + pair * 2 * LANES * element_bytes(arithmetic))


@compiled
def _load_scale(weight: Any, address: int) -> Any:
    return _load_float16(address) if weight.scale_bytes == 2 else load(address)


@instruction(types.int64, result=VECTOR)
def _load_float16(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Finite ones: sign, exponent and mantissa in the places of a float32's, then only the offset of the exponent
    differs. Not every CPU has an instruction for it."""
    extended = builder.sext(load_from(builder, lanes(INT16), address), lanes(INT32))
    bits = builder.and_(builder.shl(extended, constant(INT32, 13)), constant(INT32, 0x8FFFE000))
    return builder.fmul(builder.bitcast(bits, lanes(FLOAT)), constant(FLOAT, 2.0 ** (127 - 15)))


@instruction(types.int64, result=VECTOR)
def _load_int8(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.sitofp(builder.sext(load_from(builder, lanes(INT8), address), lanes(INT32)), lanes(FLOAT))


def _words(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Sixteen bytes, each as a word."""
    return builder.zext(load_from(builder, lanes(INT8), address), lanes(INT32))


@instruction(types.int64, result=VECTOR)
def _load_lower(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Of sixteen bytes the lower halves."""
    return builder.sitofp(builder.and_(_words(builder, address), constant(INT32, 15)), lanes(FLOAT))


@instruction(types.int64, result=VECTOR)
def _load_upper(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.sitofp(builder.lshr(_words(builder, address), constant(INT32, 4)), lanes(FLOAT))


@instruction(types.int64, types.int64, types.int64, types.int64, result=VECTOR)
def _load_six_bits(
    builder: ir.IRBuilder, address: ir.Value, high: ir.Value, shift: ir.Value, high_shift: ir.Value
) -> ir.Value:
    """The lower four from bit `shift` of the bytes at `address` on, the upper two from bit `high_shift` of `high`'s."""
    by, high_by = (broadcast(builder, builder.trunc(count, INT32)) for count in (shift, high_shift))
    lower = builder.and_(builder.lshr(_words(builder, address), by), constant(INT32, 15))
    upper = builder.and_(builder.lshr(_words(builder, high), high_by), constant(INT32, 3))
    return builder.sitofp(builder.or_(lower, builder.shl(upper, constant(INT32, 4))), lanes(FLOAT))


@instruction(VECTOR, types.int64, result=VECTOR)
def _twice(builder: ir.IRBuilder, vector: ir.Value, half: ir.Value) -> ir.Value:
    """Each lane of the lower (`half` is 0) or upper half two times."""
    undefined = ir.Constant(vector.type, ir.Undefined)
    halves = [
        builder.shuffle_vector(
            vector, undefined, ir.Constant(lanes(INT32), [INT32(first + lane // 2) for lane in range(LANES)])
        )
        for first in (0, LANES // 2)
    ]
    return builder.select(builder.icmp_signed("==", half, INT64(0)), *halves)


@arithmetic_instruction(VECTOR, VECTOR, types.int64, result=types.void)
def _store_pair(
    builder: ir.IRBuilder, arithmetic: Arithmetic, first: ir.Value, last: ir.Value, target: ir.Value
) -> None:
    """Two columns of a tile, row by row, in the order in which they are multiplied."""
    if arithmetic.has_float32_elements:
        for column in range(2):
            order = ir.Constant(lanes(INT32), [INT32(2 * lane + column) for lane in range(LANES)])
            store_to(builder, builder.shuffle_vector(first, last, order), offset(builder, target, column * 4 * LANES))
    elif arithmetic.has_bfloat16_operands:
        pairs = ir.VectorType(BFloatType(), 2 * LANES)
        store_to(builder, call(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", pairs, last, first), target)
    else:
        for index, half in enumerate((first, last)):
            store_to(builder, emit_rounded(builder, arithmetic, half), offset(builder, target, index * 2 * LANES))
