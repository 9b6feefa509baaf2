"""The memory that a thread of the attention works in, and the sizes that shape it."""

from __future__ import annotations

from typing import NamedTuple

from infer.kernels.cpu.call import Call, Partial
from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.layout import TILE
from infer.kernels.cpu.llvm import LANES

CHUNK = 256
"""Positions under one softmax, before it is merged with the next. Chunks are counted from a sequence's first token,
whatever else is computed."""

MAX_ROWS = 64
"""Rows computed together, if one query does not have more heads: their scores and weights fit a second-level cache."""

AHEAD = 8
"""Tiles that are on their way from memory while one is multiplied."""

SCORE_STRIDE = CHUNK + LANES
"""From a row of scores to the next. A power of two would lay the rows onto the same few sets of the cache."""

WORD_BYTES = 4
"""A float32, or a pair of bfloat16."""

ADDRESS_BYTES = 8

LINE_BYTES = 64
"""What the processor's caches fetch at once."""


class Workspace(NamedTuple):
    """Addresses."""

    queries: int
    """`[rows, head_dim]`, the left side of the product with the keys."""
    scores: int
    """float32 `[rows, SCORE_STRIDE]`."""
    weights: int
    """`[rows, SCORE_STRIDE]`, the left side of the product with the values."""
    chunk: Partial
    merged: Partial
    tiles: int
    """int64: addresses of tiles in the order they are read, keys of a chunk, its values, first keys of the next."""
    tile_numbers: int
    """int64 `[max_blocks * block_size / TILE]`, by position: which tile of the cache, at KV head 0."""
    last_value_tile: int
    """Room for a copy of one tile of values."""
    key_scales: int
    """float32 `[CHUNK]`, where keys are quantised."""
    value_scales: int
    """float32 `[CHUNK]`, 0 behind the last token."""
    dequantized: int
    """Room for the keys or the values of a chunk."""
    end: int


@compiled
def row_capacity(call: Call) -> int:
    """Tile registers write 16 rows at a time."""
    return (call.queries_at_once * call.group + 15) // 16 * 16


@compiled
def partial_bytes(call: Call) -> int:
    return row_capacity(call) * (call.value_head_dim + 2) * WORD_BYTES


@compiled
def partial_at(call: Call, start: int) -> Partial:
    peaks = start + row_capacity(call) * call.value_head_dim * WORD_BYTES
    return Partial(start, peaks, peaks + row_capacity(call) * WORD_BYTES)


@compiled
def workspace_at(call: Call, start: int) -> Workspace:
    num_rows = row_capacity(call)
    scores = start + num_rows * call.head_dim * WORD_BYTES
    weights = scores + num_rows * SCORE_STRIDE * WORD_BYTES
    chunk = weights + num_rows * SCORE_STRIDE * WORD_BYTES
    merged = chunk + partial_bytes(call)
    tiles = merged + partial_bytes(call)
    tile_numbers = tiles + (2 * CHUNK // TILE + AHEAD) * ADDRESS_BYTES
    last_value_tile = tile_numbers + call.max_blocks * call.block_size // TILE * ADDRESS_BYTES
    key_scales = last_value_tile + TILE * call.value_head_dim * WORD_BYTES
    value_scales = key_scales + CHUNK * WORD_BYTES
    dequantized = value_scales + CHUNK * WORD_BYTES
    return Workspace(
        start,
        scores,
        weights,
        partial_at(call, chunk),
        partial_at(call, merged),
        tiles,
        tile_numbers,
        last_value_tile,
        key_scales,
        value_scales,
        dequantized,
        dequantized + CHUNK * max(call.head_dim, call.value_head_dim) * WORD_BYTES,
    )
