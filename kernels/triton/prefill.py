"""Attention of many queries a sequence: tiles of queries, each over all the keys it sees."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from infer.kernels.triton.attend_keys import attend_keys, initial_softmax
from infer.kernels.triton.tile_shape import padded, prefill_tile

if TYPE_CHECKING:
    import torch

    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.triton.quantized import Layout


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
    num_tokens, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, value_head_dim = pages.value.shape
    group_size = num_heads // num_kv_heads
    num_seqs = metadata.seq_lens.shape[0]
    tile = prefill_tile(metadata.max_query_len, group_size, head_dim, query.element_size())
    queries_per_tile = tile.num_rows // group_size
    # The kernel finds the sequence of a tile; this bounds their number without asking the device.
    num_tiles = (num_tokens - metadata.num_decodes) // queries_per_tile + num_seqs - metadata.num_decodes
    prefill_kernel[(num_tiles, num_kv_heads)](
        output,
        query,
        pages.key,
        pages.value,
        pages.key_scales,
        pages.value_scales,
        metadata.block_table,
        metadata.query_start_loc,
        metadata.seq_lens,
        sinks,
        metadata.num_decodes,
        num_seqs,
        scale,
        output.stride(0),
        output.stride(1),
        query.stride(0),
        query.stride(1),
        pages.key.stride(0),
        pages.key.stride(1),
        pages.key.stride(2),
        pages.value.stride(0),
        pages.value.stride(1),
        pages.value.stride(2),
        pages.scale_block_stride,
        pages.scale_head_stride,
        metadata.block_table.stride(0),
        is_fp8=pages.is_fp8,
        sliding_window=sliding_window,
        softcap=softcap,
        group_size=group_size,
        block_size=block_size,
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


# What changes from step to step must not lead to a compilation for its divisors.
@triton.jit(do_not_specialize=["first_seq", "end_seq", "block_table_stride"])
def prefill_kernel(
    output_ptr: tl.tensor,
    query_ptr: tl.tensor,
    key_cache_ptr: tl.tensor,
    value_cache_ptr: tl.tensor,
    key_scales_ptr: tl.tensor | None,
    value_scales_ptr: tl.tensor | None,
    block_table_ptr: tl.tensor,
    query_start_loc_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    sinks_ptr: tl.tensor | None,
    first_seq: tl.tensor,
    end_seq: tl.tensor,
    scale: tl.tensor,
    output_token_stride: tl.tensor,
    output_head_stride: tl.tensor,
    query_token_stride: tl.tensor,
    query_head_stride: tl.tensor,
    key_block_stride: tl.tensor,
    key_token_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_block_stride: tl.tensor,
    value_token_stride: tl.tensor,
    value_head_stride: tl.tensor,
    scale_block_stride: tl.tensor,
    scale_head_stride: tl.tensor,
    block_table_stride: tl.tensor,
    is_fp8: tl.constexpr,
    sliding_window: tl.constexpr,
    softcap: tl.constexpr,
    group_size: tl.constexpr,
    block_size: tl.constexpr,
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
    queries_per_tile: tl.constexpr = num_rows // group_size
    kv_head = tl.program_id(1)
    # The tiles with the most keys come last in a sequence; starting them first leaves no long one for the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    seq = _sequence_of_tile(query_start_loc_ptr, tile, first_seq, end_seq, queries_per_tile)
    query_start = tl.load(query_start_loc_ptr + seq)
    query_len = tl.load(query_start_loc_ptr + seq + 1) - query_start
    seq_len = tl.load(seq_lens_ptr + seq)
    first_query = (tile - _first_tile(query_start, seq, first_seq, queries_per_tile)) * queries_per_tile
    if first_query >= query_len:
        return
    last_query = tl.minimum(first_query + queries_per_tile, query_len) - 1

    rows = tl.arange(0, num_rows)
    dims = tl.arange(0, head_dim_padded)
    # Rows without a query of their own repeat the last one and are not stored.
    queries = tl.minimum(first_query + rows // group_size, last_query)
    heads = kv_head * group_size + rows % group_size
    tokens = (query_start + queries).to(tl.int64)
    query_offsets = tokens * query_token_stride + heads * query_head_stride
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)

    context_len = seq_len - query_len
    positions = context_len + queries
    end_key = context_len + last_query + 1
    lowest = 0
    full_start = 0
    if sliding_window > 0:
        lowest = tl.maximum(context_len + first_query - sliding_window + 1, 0)
        full_start = lowest + tl.cdiv(tl.maximum(end_key - sliding_window, lowest) - lowest, num_keys) * num_keys
    full_end = lowest + (context_len + first_query + 1 - lowest) // num_keys * num_keys
    full_end = tl.maximum(full_end, full_start)

    key_ptr = key_cache_ptr + kv_head * key_head_stride
    value_ptr = value_cache_ptr + kv_head * value_head_stride
    if key_scales_ptr is not None:
        key_scales_ptr += kv_head * scale_head_stride
        value_scales_ptr += kv_head * scale_head_stride
    block_table_ptr += seq.to(tl.int64) * block_table_stride
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
            key_block_stride,
            key_token_stride,
            value_block_stride,
            value_token_stride,
            scale_block_stride,
            is_fp8,
            part == 1,
            sliding_window,
            softcap,
            block_size,
            head_dim,
            head_dim_padded,
            value_head_dim,
            value_head_dim_padded,
            num_keys,
        )

    value_dims = tl.arange(0, value_head_dim_padded)
    is_query = (rows < queries_per_tile * group_size) & (first_query + rows // group_size <= last_query)
    output_offsets = tokens * output_token_stride + heads * output_head_stride
    tl.store(
        output_ptr + output_offsets[:, None] + value_dims[None, :],
        accumulator / normalizer[:, None],
        mask=is_query[:, None] & (value_dims < value_head_dim)[None, :],
    )


@triton.jit
def _sequence_of_tile(
    query_start_loc_ptr: tl.tensor,
    tile: tl.tensor,
    first_seq: tl.tensor,
    end_seq: tl.tensor,
    queries_per_tile: tl.constexpr,
) -> tl.tensor:
    """The last sequence whose first tile is not behind `tile`, by bisection."""
    seq = first_seq
    behind = end_seq
    while seq + 1 < behind:
        middle = (seq + behind) // 2
        is_behind = tile < _first_tile(tl.load(query_start_loc_ptr + middle), middle, first_seq, queries_per_tile)
        seq = tl.where(is_behind, seq, middle)
        behind = tl.where(is_behind, middle, behind)
    return seq


@triton.jit
def _first_tile(
    query_start: tl.tensor, seq: tl.tensor, first_seq: tl.tensor, queries_per_tile: tl.constexpr
) -> tl.tensor:
    """A sequence's first tile, counted so that its tiles are enough whatever the lengths before it.

    `a // t + 1 - b // t` for queries `b` to `a - 1` is at least the number of tiles they need and at most one more.
    The sequences before `first_seq` have one query each, so the first query of the others is number `first_seq`.
    """
    return (query_start - first_seq) // queries_per_tile + seq - first_seq
