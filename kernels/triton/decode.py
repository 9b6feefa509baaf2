"""Attention of one query a sequence: its keys in splits of fixed length, each a program, merged by log-sum-exp.

Split keys: flash-decoding (Dao et al. 2023). Here a split lies at fixed positions whatever the batch, so that a
sequence's result has the same bits in every batch.
"""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from infer.kernels.triton.attend_keys import attend_keys, initial_softmax
from infer.kernels.triton.tile_shape import decode_tile, padded

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.triton.quantized import Layout

SPLIT_SIZE = 512
"""Keys a program; a multiple of every tile's `num_keys`."""


def decode_attention(
    output: torch.Tensor,
    query: torch.Tensor,
    pages: Layout,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> None:
    """Writes the first `num_decodes` rows of `output`."""
    num_decodes = metadata.num_decodes
    _, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, value_head_dim = pages.value.shape
    tile = decode_tile(num_heads // num_kv_heads, head_dim, query.element_size())
    num_splits = triton.cdiv(metadata.max_seq_len, SPLIT_SIZE)
    if sliding_window:
        num_splits = min(num_splits, triton.cdiv(sliding_window, SPLIT_SIZE) + 1)
    log_sum_exp = torch.empty(num_decodes, num_heads, num_splits, dtype=torch.float32, device=query.device)
    if num_splits == 1:
        partial = output[:num_decodes].unsqueeze(2)
    else:
        partial = log_sum_exp.new_empty(num_decodes, num_heads, num_splits, value_head_dim)
    split_kernel[(num_decodes, num_kv_heads, num_splits)](
        partial,
        log_sum_exp,
        query,
        pages.key,
        pages.value,
        pages.key_scales,
        pages.value_scales,
        metadata.block_table,
        metadata.seq_lens,
        sinks,
        scale,
        partial.stride(0),
        partial.stride(1),
        partial.stride(2),
        log_sum_exp.stride(0),
        log_sum_exp.stride(1),
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
        group_size=num_heads // num_kv_heads,
        block_size=block_size,
        head_dim=head_dim,
        head_dim_padded=padded(head_dim),
        value_head_dim=value_head_dim,
        value_head_dim_padded=padded(value_head_dim),
        num_rows=tile.num_rows,
        num_keys=tile.num_keys,
        split_size=SPLIT_SIZE,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,  # named, because Triton 3.10 changes its default
    )
    if num_splits > 1:
        merge_kernel[(num_decodes, num_heads)](
            output,
            partial,
            log_sum_exp,
            metadata.seq_lens,
            output.stride(0),
            output.stride(1),
            partial.stride(0),
            partial.stride(1),
            partial.stride(2),
            log_sum_exp.stride(0),
            log_sum_exp.stride(1),
            sliding_window=sliding_window,
            value_head_dim=value_head_dim,
            value_head_dim_padded=padded(value_head_dim),
            split_size=SPLIT_SIZE,
            num_warps=1,
            enable_fp_fusion=True,
        )


# What changes from step to step must not lead to a compilation for its divisors.
@triton.jit(do_not_specialize=["log_sum_exp_token_stride", "log_sum_exp_head_stride", "block_table_stride"])
def split_kernel(
    partial_ptr: tl.tensor,
    log_sum_exp_ptr: tl.tensor,
    query_ptr: tl.tensor,
    key_cache_ptr: tl.tensor,
    value_cache_ptr: tl.tensor,
    key_scales_ptr: tl.tensor | None,
    value_scales_ptr: tl.tensor | None,
    block_table_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    sinks_ptr: tl.tensor | None,
    scale: tl.tensor,
    partial_token_stride: tl.tensor,
    partial_head_stride: tl.tensor,
    partial_split_stride: tl.tensor,
    log_sum_exp_token_stride: tl.tensor,
    log_sum_exp_head_stride: tl.tensor,
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
    split_size: tl.constexpr,
) -> None:
    """Program `[sequence, KV head, split]`. The rows of its tile are the query heads of the KV head.

    Writes a normalised partial output and its log-sum-exp to base 2.
    """
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens_ptr + seq)
    lowest = _lowest_key(seq_len, sliding_window)
    split_start = (lowest // split_size + split) * split_size
    first_key = tl.maximum(split_start, lowest)
    end_key = tl.minimum(split_start + split_size, seq_len)
    if first_key >= end_key:
        return

    rows = tl.arange(0, num_rows)
    dims = tl.arange(0, head_dim_padded)
    # Rows beyond the group repeat its heads and are not stored.
    heads = kv_head * group_size + rows % group_size
    query_offsets = seq * query_token_stride + heads * query_head_stride
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)

    positions = tl.full([num_rows], seq_len - 1, tl.int32)

    key_ptr = key_cache_ptr + kv_head * key_head_stride
    value_ptr = value_cache_ptr + kv_head * value_head_stride
    if key_scales_ptr is not None:
        key_scales_ptr += kv_head * scale_head_stride
        value_scales_ptr += kv_head * scale_head_stride
    block_table_ptr += seq * block_table_stride
    # All keys are visible to all rows; only the last tile may be cut short.
    full_end = first_key + (end_key - first_key) // num_keys * num_keys
    maximum, normalizer, accumulator = initial_softmax(sinks_ptr, split == 0, heads, num_rows, value_head_dim_padded)
    for part in tl.static_range(2):
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
            first_key if part == 0 else full_end,
            full_end if part == 0 else end_key,
            scale,
            key_block_stride,
            key_token_stride,
            value_block_stride,
            value_token_stride,
            scale_block_stride,
            is_fp8,
            part == 0,
            0,  # the range itself begins at the window's first key
            softcap,
            block_size,
            head_dim,
            head_dim_padded,
            value_head_dim,
            value_head_dim_padded,
            num_keys,
        )

    is_head = rows < group_size
    value_dims = tl.arange(0, value_head_dim_padded)
    partial_offsets = seq * partial_token_stride + heads * partial_head_stride + split * partial_split_stride
    tl.store(
        partial_ptr + partial_offsets[:, None] + value_dims[None, :],
        accumulator / normalizer[:, None],
        mask=is_head[:, None] & (value_dims < value_head_dim)[None, :],
    )
    log_sum_exp_offsets = seq * log_sum_exp_token_stride + heads * log_sum_exp_head_stride + split
    tl.store(log_sum_exp_ptr + log_sum_exp_offsets, maximum + tl.log2(normalizer), mask=is_head)


@triton.jit(do_not_specialize=["log_sum_exp_token_stride", "log_sum_exp_head_stride"])
def merge_kernel(
    output_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    log_sum_exp_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    output_token_stride: tl.tensor,
    output_head_stride: tl.tensor,
    partial_token_stride: tl.tensor,
    partial_head_stride: tl.tensor,
    partial_split_stride: tl.tensor,
    log_sum_exp_token_stride: tl.tensor,
    log_sum_exp_head_stride: tl.tensor,
    sliding_window: tl.constexpr,
    value_head_dim: tl.constexpr,
    value_head_dim_padded: tl.constexpr,
    split_size: tl.constexpr,
) -> None:
    """Program `[sequence, query head]`. A single partial output is handed on bit by bit."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    seq_len = tl.load(seq_lens_ptr + seq)
    num_splits = tl.cdiv(seq_len, split_size) - _lowest_key(seq_len, sliding_window) // split_size
    dims = tl.arange(0, value_head_dim_padded)
    mask = dims < value_head_dim
    partial_ptr += seq * partial_token_stride + head * partial_head_stride
    log_sum_exp_ptr += seq * log_sum_exp_token_stride + head * log_sum_exp_head_stride

    maximum = tl.load(log_sum_exp_ptr)
    normalizer = 1.0
    accumulator = tl.load(partial_ptr + dims, mask=mask, other=0.0)
    for split in range(1, num_splits):
        log_sum_exp = tl.load(log_sum_exp_ptr + split)
        partial = tl.load(partial_ptr + split * partial_split_stride + dims, mask=mask, other=0.0)
        new_maximum = tl.maximum(maximum, log_sum_exp)
        weight = tl.exp2(log_sum_exp - new_maximum)
        decay = tl.exp2(maximum - new_maximum)
        maximum = new_maximum
        normalizer = normalizer * decay + weight
        accumulator = accumulator * decay + partial * weight
    output_offset = seq * output_token_stride + head * output_head_stride
    tl.store(output_ptr + output_offset + dims, accumulator / normalizer, mask=mask)


@triton.jit
def _lowest_key(seq_len: tl.tensor, sliding_window: tl.constexpr) -> tl.tensor:
    """The first key that the last query sees."""
    lowest = seq_len * 0
    if sliding_window > 0:
        lowest = tl.maximum(seq_len - sliding_window, 0)
    return lowest
