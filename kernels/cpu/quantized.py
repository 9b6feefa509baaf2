"""Quantised pages: heads become elements and a scale on their way into the cache, tiles become again what is computed
with. The scales stay apart: of keys they multiply the scores, of values the weights.

Every int8 and every fp8 is a bfloat16, too, so nothing is lost on the way back, whatever the arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from llvmlite import ir
from numba import types
from numpy import float32

from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.layout import AS_COMPUTED, INT8, TILE
from infer.kernels.cpu.llvm import (
    FLOAT,
    INT16,
    INT32,
    LANES,
    arithmetic_instruction,
    constant,
    instruction,
    lanes,
    load_from,
    offset,
    store_to,
)
from infer.kernels.cpu.llvm import INT8 as BYTE
from infer.kernels.cpu.operands import depth_of_step, element_bytes, load_elements, store_exact
from infer.kernels.cpu.simd import (
    VECTOR,
    add,
    divide,
    emit_spread,
    keep_lanes,
    larger_magnitude,
    largest_magnitude_of_lanes,
    load,
    load_int64,
    prefetch,
    splat,
    store,
    store_float,
    store_int64,
)
from infer.kernels.cpu.workspace import ADDRESS_BYTES, AHEAD, LINE_BYTES, WORD_BYTES, Workspace
from infer.kernels.kv_pages import LARGEST, SMALLEST_PEAK

if TYPE_CHECKING:
    from infer.kernels.cpu.arithmetic import Arithmetic
    from infer.kernels.cpu.call import Call

_LARGEST_INT8 = float32(LARGEST[torch.int8])
_LARGEST_FP8 = float32(LARGEST[torch.float8_e4m3fn])
_SMALLEST_PEAK = float32(SMALLEST_PEAK)

_UNITS = float32(1.5 * 2**23)
"""A float32 of this size counts in ones: what is added to it is rounded to a whole number, in the lowest bits."""

_TILE_BYTES = TILE * WORD_BYTES
"""Of the scales of a tile."""


@compiled
def store_quantized_key(arithmetic: Any, call: Any, source: int, tile: int, lane: int) -> None:
    scale = _scale_head(arithmetic, call, source, call.head_dim, call.key_scales + (tile * TILE + lane) * WORD_BYTES)
    target = call.key_cache + tile * TILE * call.head_dim + lane * depth_of_step(arithmetic)
    for column in range(0, call.head_dim, LANES):
        scaled = divide(load_elements(arithmetic, source + column * element_bytes(arithmetic)), splat(scale))
        _store_of_key(arithmetic, _encode(call, scaled), target + column * TILE)


@compiled
def store_quantized_value(arithmetic: Any, call: Any, source: int, tile: int, lane: int) -> None:
    size, depth = call.value_head_dim, depth_of_step(arithmetic)
    scale = _scale_head(arithmetic, call, source, size, call.value_scales + (tile * TILE + lane) * WORD_BYTES)
    target = call.value_cache + (tile * TILE + lane // depth * depth) * size
    for column in range(0, size, LANES):
        scaled = divide(load_elements(arithmetic, source + column * element_bytes(arithmetic)), splat(scale))
        _store_of_value(arithmetic, _encode(call, scaled), target + column * depth, lane % depth)


@compiled
def _scale_head(arithmetic: Any, call: Any, source: int, size: int, target: int) -> float32:
    """Stores and returns the scale of a head."""
    peaks = splat(_SMALLEST_PEAK)
    for column in range(0, size, LANES):
        peaks = larger_magnitude(peaks, load_elements(arithmetic, source + column * element_bytes(arithmetic)))
    largest = _LARGEST_INT8 if call.page_format == INT8 else _LARGEST_FP8
    scale: float32 = largest_magnitude_of_lanes(peaks) / largest
    store_float(scale, target)
    return scale


@compiled
def _encode(call: Any, scaled: Any) -> Any:
    """Numbers as elements, each in the lowest byte of its lane."""
    return add(scaled, splat(_UNITS)) if call.page_format == INT8 else _encode_fp8(scaled)


@instruction(VECTOR, result=VECTOR)
def _encode_fp8(builder: ir.IRBuilder, numbers: ir.Value) -> ir.Value:
    """To nearest, ties to even. Of a float32's 8 bits of exponent, offset by 127, and 23 of mantissa, 4, offset by 7,
    and 3 are left; what is below 2**-6 becomes a multiple of 2**-9."""
    bits = builder.bitcast(numbers, lanes(INT32))
    magnitude = builder.and_(bits, constant(INT32, 0x7FFFFFFF))
    last = builder.and_(builder.lshr(magnitude, constant(INT32, 20)), constant(INT32, 1))
    half = builder.add(magnitude, builder.add(last, constant(INT32, 0x7FFFF)))
    rounded = builder.sub(builder.lshr(half, constant(INT32, 20)), constant(INT32, (127 - 7) << 3))
    # A float32 of this size counts in 2**-9.
    units = constant(FLOAT, 2.0**14)
    counted = builder.fadd(builder.bitcast(magnitude, lanes(FLOAT)), units)
    small = builder.sub(builder.bitcast(counted, lanes(INT32)), builder.bitcast(units, lanes(INT32)))
    is_small = builder.icmp_signed("<", magnitude, constant(INT32, (127 - 6) << 23))
    sign = builder.and_(builder.lshr(bits, constant(INT32, 24)), constant(INT32, 0x80))
    return builder.bitcast(builder.or_(builder.select(is_small, small, rounded), sign), lanes(FLOAT))


@arithmetic_instruction(VECTOR, types.int64, result=types.void)
def _store_of_key(builder: ir.IRBuilder, arithmetic: Arithmetic, codes: ir.Value, target: ir.Value) -> None:
    """Sixteen dimensions of a key into its lane of a tile."""
    elements = _lowest_bytes(builder, codes)
    depth = 1 if arithmetic.has_float32_elements else 2
    if depth == 2:
        elements = builder.bitcast(elements, ir.VectorType(INT16, LANES // 2))
    for word in range(LANES // depth):
        store_to(builder, builder.extract_element(elements, INT32(word)), offset(builder, target, word * depth * TILE))


@arithmetic_instruction(VECTOR, types.int64, types.int64, result=types.void)
def _store_of_value(
    builder: ir.IRBuilder, arithmetic: Arithmetic, codes: ir.Value, target: ir.Value, high: ir.Value
) -> None:
    """Sixteen dimensions of a value, side by side, or each as the lower or upper half of a pair."""
    elements = _lowest_bytes(builder, codes)
    if arithmetic.has_float32_elements:
        store_to(builder, elements, target)
    else:
        emit_spread(builder, elements, target, high)


def _lowest_bytes(builder: ir.IRBuilder, codes: ir.Value) -> ir.Value:
    return builder.trunc(builder.bitcast(codes, lanes(INT32)), lanes(BYTE))


@compiled
def page_element_bytes(arithmetic: Any, call: Call) -> int:
    """Of keys and values in the cache."""
    return element_bytes(arithmetic) if call.page_format == AS_COMPUTED else 1


@compiled
def gather_scales(call: Call, kv_head: int, start: int, num_tiles: int, num_tokens: int, space: Workspace) -> None:
    """Copies the scales of the tiles from position `start` on. Those of values end behind `num_tokens`: what lies there
    may be anything, and a weight of 0 does not make a NaN harmless."""
    first_tile = kv_head * (call.block_size // TILE)
    for tile in range(num_tiles):
        number = first_tile + load_int64(space.tile_numbers + (start // TILE + tile) * ADDRESS_BYTES)
        source, target = number * _TILE_BYTES, tile * _TILE_BYTES
        store(load(call.key_scales + source), space.key_scales + target)
        scales = keep_lanes(load(call.value_scales + source), 0, num_tokens - tile * TILE, splat(float32(0.0)))
        store(scales, space.value_scales + target)


@compiled
def dequantize_tiles(arithmetic: Any, call: Call, size: int, tiles: int, num_tiles: int, space: Workspace) -> None:
    """Replaces tiles in a table by copies as the products take them, and brings the ones behind them near meanwhile.

    size: elements of a head
    """
    for tile in range(num_tiles):
        entry = tiles + tile * ADDRESS_BYTES
        source, ahead = load_int64(entry), load_int64(entry + AHEAD * ADDRESS_BYTES)
        target = space.dequantized + tile * size * TILE * element_bytes(arithmetic)
        store_int64(target, entry)
        for line in range(0, size * TILE, LINE_BYTES):
            prefetch(ahead + line)
            for element in range(line, line + LINE_BYTES, LANES):
                number = _load_int8(source + element) if call.page_format == INT8 else _load_fp8(source + element)
                store_exact(arithmetic, number, target + element * element_bytes(arithmetic))


@instruction(types.int64, result=VECTOR)
def _load_int8(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.sitofp(builder.sext(load_from(builder, lanes(BYTE), address), lanes(INT32)), lanes(FLOAT))


@instruction(types.int64, result=VECTOR)
def _load_fp8(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Sign, exponent and mantissa in the places of a float32's; then only the offset of the exponent differs."""
    extended = builder.sext(load_from(builder, lanes(BYTE), address), lanes(INT32))
    bits = builder.and_(builder.shl(extended, constant(INT32, 20)), constant(INT32, 0x87F00000))
    return builder.fmul(builder.bitcast(bits, lanes(FLOAT)), constant(FLOAT, 2.0 ** (127 - 7)))
