"""Attention of a few rows to one chunk of their sequence's keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy import float32

from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.layout import AS_COMPUTED, TILE
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import depth_of_step, operand_bytes
from infer.kernels.cpu.products import multiply_keys, multiply_values, rows_at_once
from infer.kernels.cpu.quantized import dequantize_tiles, gather_scales, page_element_bytes
from infer.kernels.cpu.register_block import MAX_COLUMNS
from infer.kernels.cpu.simd import copy_masked, load_int32, load_int64, store_float, store_int64
from infer.kernels.cpu.softmax import softmax
from infer.kernels.cpu.workspace import ADDRESS_BYTES, AHEAD, CHUNK, SCORE_STRIDE, WORD_BYTES, Workspace

if TYPE_CHECKING:
    from infer.kernels.cpu.call import Call, Entry, Partial, Rows

_SCORE_BYTES = SCORE_STRIDE * WORD_BYTES


@compiled
def first_visible(call: Call, position: int) -> int:
    """The first position that a query at `position` sees."""
    return max(0, position - call.sliding_window + 1) if call.sliding_window > 0 else 0


@compiled
def number_tiles(call: Call, entry: Entry, space: Workspace) -> None:
    """Looks up in which tiles the keys and values lie that the entry needs."""
    tiles_per_block = call.block_size // TILE
    table = call.block_table + entry.sequence * call.max_blocks * 4
    start, _ = _positions(call, entry, entry.first_chunk)
    _, end = _positions(call, entry, entry.end_chunk - 1)
    for block in range(start // call.block_size, (end + call.block_size - 1) // call.block_size):
        number = load_int32(table + block * 4) * call.num_kv_heads * tiles_per_block
        for tile in range(tiles_per_block):
            store_int64(number + tile, space.tile_numbers + (block * tiles_per_block + tile) * ADDRESS_BYTES)


@compiled
def attend_chunk(
    arithmetic: Any,
    call: Call,
    rows: Rows,
    chunk: int,
    next_head: int,
    next_chunk: int,
    space: Workspace,
    partial: Partial,
) -> None:
    """Fills `partial`. The queries and the numbers of the tiles are in the workspace.

    next_head, next_chunk: whose keys are wanted next, at the same queries
    """
    start, end = _positions(call, rows.entry, chunk)
    num_tiles = (end - start + TILE - 1) // TILE
    num_rows = rows.entry.num_queries * call.group
    keys = space.tiles
    values = keys + num_tiles * ADDRESS_BYTES
    ahead = values + num_tiles * ADDRESS_BYTES
    key_bytes = call.head_dim * TILE * page_element_bytes(arithmetic, call)
    value_bytes = call.value_head_dim * TILE * page_element_bytes(arithmetic, call)
    _locate(call, call.key_cache, key_bytes, rows.kv_head, start, num_tiles, space, keys)
    _locate(call, call.value_cache, value_bytes, rows.kv_head, start, num_tiles, space, values)
    next_start, next_end = _positions(call, rows.entry, next_chunk)
    num_ahead = min(AHEAD, (next_end - next_start + TILE - 1) // TILE)
    _locate(call, call.key_cache, key_bytes, next_head, next_start, num_ahead, space, ahead)
    for index in range(num_ahead, AHEAD):
        store_int64(load_int64(ahead), ahead + index * ADDRESS_BYTES)

    num_tokens = load_int32(call.seq_lens + rows.entry.sequence * 4) - start
    if call.page_format != AS_COMPUTED:
        gather_scales(call, rows.kv_head, start, num_tiles, num_tokens, space)
        dequantize_tiles(arithmetic, call, call.head_dim, keys, num_tiles, space)
    _score(arithmetic, call, num_rows, keys, num_tiles, space)
    for row in range(num_rows):
        position = rows.entry.position + row // call.group
        peak, total = softmax(
            arithmetic,
            space.scores + row * _SCORE_BYTES,
            space.weights + row * SCORE_STRIDE * operand_bytes(arithmetic),
            num_tiles,
            max(0, first_visible(call, position) - start),
            max(0, min(end, position + 1) - start),
            space.key_scales if call.page_format != AS_COMPUTED else 0,
            space.value_scales,
            float32(call.scale),
            float32(call.softcap),
        )
        store_float(peak, partial.peaks + row * WORD_BYTES)
        store_float(total, partial.totals + row * WORD_BYTES)
    if call.page_format != AS_COMPUTED:
        dequantize_tiles(arithmetic, call, call.value_head_dim, values, num_tiles, space)
    elif num_tokens < num_tiles * TILE:
        _cut_last_tile(arithmetic, call, num_tokens % TILE, values + (num_tiles - 1) * ADDRESS_BYTES, space)
    _sum_values(arithmetic, call, num_rows, values, num_tiles, space, partial)


@compiled
def _positions(call: Call, entry: Entry, chunk: int) -> tuple[int, int]:
    """First position of the chunk that any row sees, at the border of a tile, and the one behind the last."""
    start = max(chunk * CHUNK, first_visible(call, entry.position) // TILE * TILE)
    return start, min((chunk + 1) * CHUNK, entry.position + entry.num_queries)


@compiled
def _locate(
    call: Call, cache: int, tile_bytes: int, kv_head: int, start: int, num_tiles: int, space: Workspace, table: int
) -> None:
    """Fills a table with the addresses of tiles."""
    first = cache + kv_head * (call.block_size // TILE) * tile_bytes
    for index in range(num_tiles):
        number = load_int64(space.tile_numbers + (start // TILE + index) * ADDRESS_BYTES)
        store_int64(first + number * tile_bytes, table + index * ADDRESS_BYTES)


@compiled
def _cut_last_tile(arithmetic: Any, call: Call, num_tokens: int, entry: int, space: Workspace) -> None:
    """Replaces the value tile in a table's entry by a copy with zeros behind its first `num_tokens`: what lies behind a
    sequence's end may be anything, and a weight of 0 does not make a NaN harmless."""
    depth = depth_of_step(arithmetic)
    source, target = load_int64(entry), space.last_value_tile
    for step in range(TILE // depth):
        num_kept = num_tokens - step * depth
        mask = 0xFFFFFFFF if num_kept >= depth else 0xFFFF if num_kept > 0 else 0
        for column in range(step * call.value_head_dim, (step + 1) * call.value_head_dim, LANES):
            copy_masked(source + column * WORD_BYTES, target + column * WORD_BYTES, mask)
    store_int64(target, entry)


@compiled
def _score(arithmetic: Any, call: Call, num_rows: int, tiles: int, num_tiles: int, space: Workspace) -> None:
    query_bytes = call.head_dim * operand_bytes(arithmetic)
    tile = 0
    while tile < num_tiles:
        num_columns = MAX_COLUMNS if num_tiles - tile >= MAX_COLUMNS else 1
        row = 0
        while row < num_rows:
            num_rows_now = rows_at_once(arithmetic, num_rows - row)
            multiply_keys(
                arithmetic,
                num_rows_now,
                num_columns,
                space.queries + row * query_bytes,
                query_bytes,
                tiles + tile * ADDRESS_BYTES,
                # The first rows bring tiles near for all.
                tiles + (tile + AHEAD) * ADDRESS_BYTES if row == 0 else 0,
                call.head_dim // depth_of_step(arithmetic),
                space.scores + row * _SCORE_BYTES + tile * TILE * WORD_BYTES,
                _SCORE_BYTES,
            )
            row += num_rows_now
        tile += num_columns


@compiled
def _sum_values(
    arithmetic: Any, call: Call, num_rows: int, tiles: int, num_tiles: int, space: Workspace, partial: Partial
) -> None:
    weight_bytes = SCORE_STRIDE * operand_bytes(arithmetic)
    row_bytes = call.value_head_dim * WORD_BYTES
    column = 0
    while column < call.value_head_dim:
        num_columns = MAX_COLUMNS if call.value_head_dim - column >= MAX_COLUMNS * LANES else 1
        row = 0
        while row < num_rows:
            num_rows_now = rows_at_once(arithmetic, num_rows - row)
            multiply_values(
                arithmetic,
                num_rows_now,
                num_columns,
                space.weights + row * weight_bytes,
                weight_bytes,
                tiles,
                tiles + AHEAD * ADDRESS_BYTES if row == 0 else 0,
                num_tiles,
                row_bytes,
                column * WORD_BYTES,
                partial.sums + row * row_bytes + column * WORD_BYTES,
                row_bytes,
            )
            row += num_rows_now
        column += num_columns * LANES
