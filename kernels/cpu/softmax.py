"""The softmax of one row over one chunk, not yet divided by its total."""

from __future__ import annotations

from typing import Any

from numpy import float32

from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.layout import TILE
from infer.kernels.cpu.operands import operand_bytes, store_operands
from infer.kernels.cpu.simd import (
    add,
    exp2,
    keep_lanes,
    largest_lane,
    load,
    maximum,
    multiply,
    multiply_add,
    splat,
    store,
    sum_of_lanes,
    tanh,
)

LOWEST = float32(-3.0e38)
"""The peak where a row sees nothing: finite, so that the difference of two peaks is a number."""

_SCORE_BYTES = 4 * TILE


@compiled
def softmax(
    arithmetic: Any,
    scores: int,
    weights: int,
    num_tiles: int,
    first: int,
    end: int,
    key_scales: int,
    value_scales: int,
    scale: float32,
    softcap: float32,
) -> tuple[float32, float32]:
    """Turns the scores of `num_tiles` tiles into weights, `2 ** (scale * score - peak)`. The row sees the tokens
    `first` to `end - 1`; what it does not see weighs 0, whatever its score is.

    scores, weights: addresses of the row
    key_scales, value_scales: addresses of the scales of quantised keys and values, one a token; the first is 0 where
        there are none. Scores are multiplied by the first, weights, once they are in the total, by the second

    Returns the peak, which is the largest scaled score, and the total of the weights.
    """
    first_tile, end_tile = first // TILE, (end + TILE - 1) // TILE
    zero = splat(float32(0.0))
    weight_bytes = TILE * operand_bytes(arithmetic)
    for tile in range(min(first_tile, num_tiles)):
        store_operands(arithmetic, zero, weights + tile * weight_bytes)
    for tile in range(max(first_tile, end_tile), num_tiles):
        store_operands(arithmetic, zero, weights + tile * weight_bytes)
    if end <= first:
        return LOWEST, float32(0.0)

    if key_scales != 0:
        for tile in range(first_tile, end_tile):
            address = scores + tile * _SCORE_BYTES
            store(multiply(load(address), load(key_scales + tile * _SCORE_BYTES)), address)
    if softcap > 0.0:
        for address in range(scores + first_tile * _SCORE_BYTES, scores + end_tile * _SCORE_BYTES, _SCORE_BYTES):
            capped = tanh(multiply(load(address), splat(scale / softcap)))
            store(multiply(splat(softcap), capped), address)
        scale = float32(1.0)
    for tile in (first_tile, end_tile - 1):
        address = scores + tile * _SCORE_BYTES
        store(keep_lanes(load(address), first - tile * TILE, end - tile * TILE, splat(LOWEST)), address)

    # Two at a time: one maximum after the other would take longer than all the rest.
    first_score, last_score = scores + first_tile * _SCORE_BYTES, scores + (end_tile - 1) * _SCORE_BYTES
    largest = load(last_score)
    for address in range(first_score, last_score, 2 * _SCORE_BYTES):
        largest = maximum(largest, maximum(load(address), load(address + _SCORE_BYTES)))
    peak = largest_lane(largest) * scale

    total = zero
    for tile in range(first_tile, end_tile):
        weight = exp2(multiply_add(load(scores + tile * _SCORE_BYTES), splat(scale), splat(-peak)))
        total = add(total, weight)
        if key_scales != 0:
            weight = multiply(weight, load(value_scales + tile * _SCORE_BYTES))
        store_operands(arithmetic, weight, weights + tile * weight_bytes)
    return peak, sum_of_lanes(total)
