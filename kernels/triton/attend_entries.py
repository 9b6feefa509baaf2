"""attend_entries_kernel: the entries of a work list, each a tile of rows over a range of keys that all of them see.

Split keys: flash-decoding (Dao et al. 2023). Keys shared by several sequences, attended to once: Hydragen (Juravsky et
al. 2024, arXiv:2402.05099); here of any nesting, and by the same kernel.
"""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

import triton
import triton.language as tl

from infer.kernels.triton.attend_keys import attend_keys, initial_softmax
from infer.kernels.triton.work_list import ENTRY_SIZE

_ENTRY_SIZE = tl.constexpr(ENTRY_SIZE)


# What changes from step to step must not lead to a compilation for its divisors.
@triton.jit(do_not_specialize=["max_slots", "block_table_stride"])
def attend_entries_kernel(
    output_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    log_sum_exp_ptr: tl.tensor,
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
    max_slots: tl.tensor,
    query_token_stride: tl.tensor,
    query_head_stride: tl.tensor,
    block_table_stride: tl.tensor,
    is_fp8: tl.constexpr,
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
    """Any number of programs: each takes every so-manieth entry and KV head. Row `r` of a tile is query head
    `r % group_size` of the entry's query `r // group_size`.

    Writes a query's output, or, where it has several entries, a normalised partial output and its log-sum-exp to base
    2.
    partial: float32 `[num_queries, max_slots, num_heads, value_head_dim]`
    log_sum_exp: float32 `[num_queries, max_slots, num_heads]`
    """
    num_heads: tl.constexpr = num_kv_heads * group_size
    rows = tl.arange(0, num_rows)
    dims = tl.arange(0, head_dim_padded)
    value_dims = tl.arange(0, value_head_dim_padded)
    num_works = tl.load(num_entries_ptr) * num_kv_heads
    for work in range(tl.program_id(0), num_works, tl.num_programs(0)):
        # The heads of a token lie side by side, so they are read at about the same time.
        entry_ptr = entries_ptr + work // num_kv_heads * _ENTRY_SIZE
        kv_head = work % num_kv_heads
        first_token = tl.load(entry_ptr)
        num_tokens = tl.load(entry_ptr + 1)
        table_row = tl.load(entry_ptr + 2).to(tl.int64)
        first_key = tl.load(entry_ptr + 3)
        end_key = tl.load(entry_ptr + 4)
        slot = tl.load(entry_ptr + 5)

        # Rows beyond the queries repeat the last one, rows beyond the group its heads; they are not stored.
        queries = tl.minimum(rows // group_size, num_tokens - 1)
        tokens = (first_token + queries).to(tl.int64)
        heads = kv_head * group_size + rows % group_size
        query_offsets = tokens * query_token_stride + heads * query_head_stride
        query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)

        key_ptr = key_cache_ptr + kv_head * head_dim
        value_ptr = value_cache_ptr + kv_head * value_head_dim
        if key_scales_ptr is not None:
            key_scales = key_scales_ptr + kv_head * block_size
            value_scales = value_scales_ptr + kv_head * block_size
        else:
            key_scales = None
            value_scales = None
        block_table = block_table_ptr + table_row * block_table_stride
        maximum, normalizer, accumulator = initial_softmax(sinks_ptr, slot <= 0, heads, num_rows, value_head_dim_padded)
        # Only the last tile may be cut short. For few rows a mask costs less than to wait for its keys by themselves.
        full_end = end_key
        if num_rows >= 64:
            full_end = first_key + (end_key - first_key) // num_keys * num_keys
        for part in tl.static_range(2 if num_rows >= 64 else 1):
            maximum, normalizer, accumulator = attend_keys(
                maximum,
                normalizer,
                accumulator,
                query,
                tokens,  # positions, which are not looked at
                key_ptr,
                value_ptr,
                key_scales,
                value_scales,
                block_table,
                first_key if part == 0 else full_end,
                full_end if part == 0 else end_key,
                scale,
                is_fp8,
                part == 0 and num_rows >= 64,
                False,
                0,
                softcap,
                block_size,
                num_kv_heads,
                head_dim,
                head_dim_padded,
                value_head_dim,
                value_head_dim_padded,
                num_keys,
            )

        output = accumulator / normalizer[:, None]
        is_row = rows < num_tokens * group_size
        mask = is_row[:, None] & (value_dims < value_head_dim)[None, :]
        if slot < 0:
            offsets = (tokens * num_heads + heads) * value_head_dim
            tl.store(output_ptr + offsets[:, None] + value_dims[None, :], output, mask=mask)
        else:
            places = (tokens * max_slots + slot) * num_heads + heads
            tl.store(partial_ptr + (places * value_head_dim)[:, None] + value_dims[None, :], output, mask=mask)
            tl.store(log_sum_exp_ptr + places, maximum + tl.log2(normalizer), mask=is_row)


@triton.jit(do_not_specialize=["max_slots"])
def merge_slots_kernel(
    output_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    log_sum_exp_ptr: tl.tensor,
    num_slots_ptr: tl.tensor,
    max_slots: tl.tensor,
    num_heads: tl.constexpr,
    heads_per_program: tl.constexpr,
    value_head_dim: tl.constexpr,
    value_head_dim_padded: tl.constexpr,
) -> None:
    """Program `[query, tile of heads]`: partial outputs by the weights of their log-sum-exps, in order. A query without
    keys, which pads a batch, gets zeros."""
    token = tl.program_id(0).to(tl.int64)
    num_slots = tl.load(num_slots_ptr + token)
    if num_slots == 1:
        return
    heads = tl.program_id(1) * heads_per_program + tl.arange(0, heads_per_program)
    dims = tl.arange(0, value_head_dim_padded)
    is_head = heads < num_heads
    mask = is_head[:, None] & (dims < value_head_dim)[None, :]
    maximum = tl.full([heads_per_program], float("-inf"), tl.float32)
    normalizer = tl.zeros([heads_per_program], tl.float32)
    accumulator = tl.zeros([heads_per_program, value_head_dim_padded], tl.float32)
    for slot in range(num_slots):
        places = (token * max_slots + slot) * num_heads + heads
        log_sum_exp = tl.load(log_sum_exp_ptr + places, mask=is_head, other=0.0)
        partial = tl.load(partial_ptr + (places * value_head_dim)[:, None] + dims[None, :], mask=mask, other=0.0)
        new_maximum = tl.maximum(maximum, log_sum_exp)
        weight = tl.exp2(log_sum_exp - new_maximum)
        decay = tl.exp2(maximum - new_maximum)
        maximum = new_maximum
        normalizer = normalizer * decay + weight
        accumulator = accumulator * decay[:, None] + partial * weight[:, None]
    normalizer = tl.where(num_slots == 0, 1.0, normalizer)
    offsets = (token * num_heads + heads) * value_head_dim
    tl.store(output_ptr + offsets[:, None] + dims[None, :], accumulator / normalizer[:, None], mask=mask)
