"""Attention of many queries a sequence: tiles of queries, each over all the keys it sees."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from infer.kernels.triton.attend_keys import attend_keys, initial_softmax
from infer.kernels.triton.query_tiles import ENTRY_SIZE, QueryTiles, list_query_tiles
from infer.kernels.triton.tile_shape import padded, prefill_tile

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.triton.quantized import Layout

_ENTRY_SIZE = tl.constexpr(ENTRY_SIZE)


def prefill_attention(
    output: torch.Tensor,
    query: torch.Tensor,
    pages: Layout,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> None:
    """Writes the rows of `output` that belong to the sequences behind the first `num_decodes`."""
    _, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, value_head_dim = pages.value.shape
    group_size = num_heads // num_kv_heads
    tile = prefill_tile(metadata.max_query_len, group_size, head_dim, query.element_size())
    tiles = _tiles(query, metadata, tile.num_rows // group_size)
    attend_tiles_kernel[(tiles.entries.shape[0], num_kv_heads)](
        output,
        query,
        pages.key,
        pages.value,
        pages.key_scales,
        pages.value_scales,
        metadata.block_table,
        tiles.entries,
        tiles.num_entries,
        sinks,
        scale,
        query.stride(0),
        query.stride(1),
        metadata.block_table.stride(0),
        is_fp8=pages.is_fp8,
        sliding_window=sliding_window,
        softcap=softcap,
        group_size=group_size,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_dim_padded=padded(head_dim),
        value_head_dim=value_head_dim,
        value_head_dim_padded=padded(value_head_dim),
        num_rows=tile.num_rows,
        num_keys=tile.num_keys,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,  # named, because Triton 3.10 changes its default
    )


def _tiles(query: torch.Tensor, metadata: AttentionMetadata, queries_per_tile: int) -> QueryTiles:
    """The same object for all layers of a step. A graph that is being captured makes its own, as in `decode`."""
    is_captured = query.is_cuda and torch.cuda.is_current_stream_capturing()
    key = ("triton prefill", queries_per_tile, is_captured)
    plans: dict[Any, QueryTiles] = metadata.plans
    if key not in plans:
        plans[key] = list_query_tiles(metadata, queries_per_tile)
    return plans[key]


# What changes from step to step must not lead to a compilation for its divisors.
@triton.jit(do_not_specialize=["block_table_stride"])
def attend_tiles_kernel(
    output_ptr: tl.tensor,
    query_ptr: tl.tensor,
    key_cache_ptr: tl.tensor,
    value_cache_ptr: tl.tensor,
    key_scales_ptr: tl.tensor | None,
    value_scales_ptr: tl.tensor | None,
    block_table_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    num_entries_ptr: tl.tensor,
    sinks_ptr: tl.tensor | None,
    scale: tl.tensor,
    query_token_stride: tl.tensor,
    query_head_stride: tl.tensor,
    block_table_stride: tl.tensor,
    is_fp8: tl.constexpr,
    sliding_window: tl.constexpr,
    softcap: tl.constexpr,
    group_size: tl.constexpr,
    block_size: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    head_dim_padded: tl.constexpr,
    value_head_dim: tl.constexpr,
    value_head_dim_padded: tl.constexpr,
    num_rows: tl.constexpr,
    num_keys: tl.constexpr,
) -> None:
    """Program `[query tile, KV head]`. Row `r` of a tile is head `r % group_size` of its query `r // group_size`.

    keys     0 ........ lowest .. full_start ......... full_end .. end_key
             | no row sees | some do |  all rows see them  | some do |
    """
    num_heads: tl.constexpr = num_kv_heads * group_size
    # The tiles with the most keys come last in a sequence; starting them first leaves no long one for the end.
    tile = tl.load(num_entries_ptr) - 1 - tl.program_id(0)
    if tile < 0:
        return
    kv_head = tl.program_id(1)
    entry_ptr = entries_ptr + tile * _ENTRY_SIZE
    first_token = tl.load(entry_ptr)
    num_queries = tl.load(entry_ptr + 1)
    seq = tl.load(entry_ptr + 2).to(tl.int64)
    first_position = tl.load(entry_ptr + 3)

    rows = tl.arange(0, num_rows)
    dims = tl.arange(0, head_dim_padded)
    # Rows without a query of their own repeat the last one and are not stored.
    queries = tl.minimum(rows // group_size, num_queries - 1)
    heads = kv_head * group_size + rows % group_size
    tokens = (first_token + queries).to(tl.int64)
    query_offsets = tokens * query_token_stride + heads * query_head_stride
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)

    positions = first_position + queries
    end_key = first_position + num_queries
    lowest = 0
    full_start = 0
    if sliding_window > 0:
        lowest = tl.maximum(first_position - sliding_window + 1, 0)
        full_start = lowest + tl.cdiv(tl.maximum(end_key - sliding_window, lowest) - lowest, num_keys) * num_keys
    full_end = lowest + (first_position + 1 - lowest) // num_keys * num_keys
    full_end = tl.maximum(full_end, full_start)

    key_ptr = key_cache_ptr + kv_head * head_dim
    value_ptr = value_cache_ptr + kv_head * value_head_dim
    if key_scales_ptr is not None:
        key_scales_ptr += kv_head * block_size
        value_scales_ptr += kv_head * block_size
    block_table_ptr += seq * block_table_stride
    maximum, normalizer, accumulator = initial_softmax(sinks_ptr, True, heads, num_rows, value_head_dim_padded)
    for part in tl.static_range(0 if sliding_window > 0 else 1, 3):
        if part == 0:
            part_start, part_end = lowest, tl.minimum(full_start, end_key)
        elif part == 1:
            part_start, part_end = full_start, full_end
        else:
            part_start, part_end = full_end, end_key
        maximum, normalizer, accumulator = attend_keys(
            maximum,
            normalizer,
            accumulator,
            query,
            positions,
            key_ptr,
            value_ptr,
            key_scales_ptr,
            value_scales_ptr,
            block_table_ptr,
            part_start,
            part_end,
            scale,
            is_fp8,
            part == 1,
            True,
            sliding_window,
            softcap,
            block_size,
            num_kv_heads,
            head_dim,
            head_dim_padded,
            value_head_dim,
            value_head_dim_padded,
            num_keys,
        )

    value_dims = tl.arange(0, value_head_dim_padded)
    offsets = (tokens * num_heads + heads) * value_head_dim
    tl.store(
        output_ptr + offsets[:, None] + value_dims[None, :],
        accumulator / normalizer[:, None],
        mask=(rows < num_queries * group_size)[:, None] & (value_dims < value_head_dim)[None, :],
    )
