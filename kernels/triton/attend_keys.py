"""attend_keys: a tile of query rows takes in a range of keys by the online softmax, the inner loop of all attention.

Online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867; in tiles: Dao et al. 2022, FlashAttention,
arXiv:2205.14135, algorithm 1. Here the keys are found through a block table, and logits are to base 2.
"""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

import triton
import triton.language as tl

from infer.kernels.triton.quantized import fractions, load_scales

LOG2_E = tl.constexpr(1.4426950408889634)

NO_SCORE = tl.constexpr(-1.0e30)
"""The maximum before the first key. Finite, so that a row that has seen only hidden keys (-inf) stays free of NaN."""


@triton.jit
def initial_softmax(
    sinks_ptr: tl.tensor | None,
    has_sinks: tl.tensor,
    heads: tl.tensor,
    num_rows: tl.constexpr,
    value_head_dim_padded: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Maximum, normalizer and accumulator of the rows before the first key. A sink is a key without a value."""
    maximum = tl.full([num_rows], NO_SCORE, tl.float32)
    normalizer = tl.zeros([num_rows], tl.float32)
    accumulator = tl.zeros([num_rows, value_head_dim_padded], tl.float32)
    if sinks_ptr is not None:
        sinks = tl.load(sinks_ptr + heads).to(tl.float32) * LOG2_E
        maximum = tl.where(has_sinks, sinks, maximum)
        normalizer = tl.where(has_sinks, 1.0, normalizer)
    return maximum, normalizer, accumulator


@triton.jit
def attend_keys(
    maximum: tl.tensor,
    normalizer: tl.tensor,
    accumulator: tl.tensor,
    query: tl.tensor,
    query_positions: tl.tensor,
    key_ptr: tl.tensor,
    value_ptr: tl.tensor,
    key_scales_ptr: tl.tensor | None,
    value_scales_ptr: tl.tensor | None,
    block_table_ptr: tl.tensor,
    first_key: tl.tensor,
    end_key: tl.tensor,
    scale: tl.tensor,
    is_fp8: tl.constexpr,
    all_visible: tl.constexpr,
    is_causal: tl.constexpr,
    sliding_window: tl.constexpr,
    softcap: tl.constexpr,
    block_size: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    head_dim_padded: tl.constexpr,
    value_head_dim: tl.constexpr,
    value_head_dim_padded: tl.constexpr,
    num_keys: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Maximum, normalizer and accumulator of the rows after the keys `first_key` to `end_key - 1`.

    query: `[num_rows, head_dim_padded]`, block_table_ptr: of the sequence, the other pointers: of the KV head.
    all_visible: every row sees every key of the range, whose length is then a multiple of `num_keys`.
    is_causal: otherwise a row sees the keys of the range up to its own position; if not, all of them.
    """
    offsets = tl.arange(0, num_keys)
    dims = tl.arange(0, head_dim_padded)
    value_dims = tl.arange(0, value_head_dim_padded)
    positions = first_key + offsets
    block_ids = tl.load(block_table_ptr + positions // block_size, mask=positions < end_key, other=0)
    for tile_start in range(first_key, end_key, num_keys):
        positions = tile_start + offsets
        blocks = block_ids.to(tl.int64)
        slots = blocks * block_size + positions % block_size
        key_offsets = slots * (num_kv_heads * head_dim)
        value_offsets = slots * (num_kv_heads * value_head_dim)
        # The next tile's block ids are loaded here, so that the loads below depend on nothing of their own iteration
        # and stay in flight for as many tiles as there are stages.
        next_positions = positions + num_keys
        block_ids = tl.load(block_table_ptr + next_positions // block_size, mask=next_positions < end_key, other=0)

        key_mask = (dims < head_dim)[None, :]
        value_mask = (value_dims < value_head_dim)[None, :]
        if not all_visible:
            key_mask = key_mask & (positions < end_key)[:, None]
            value_mask = value_mask & (positions < end_key)[:, None]
        key = tl.load(key_ptr + key_offsets[:, None] + dims[None, :], mask=key_mask, other=0.0)
        value = tl.load(value_ptr + value_offsets[:, None] + value_dims[None, :], mask=value_mask, other=0.0)
        if key_scales_ptr is not None:
            scale_offsets = blocks * (num_kv_heads * block_size) + positions % block_size
            key_scales = load_scales(key_scales_ptr + scale_offsets, positions < end_key, is_fp8)
            value_scales = load_scales(value_scales_ptr + scale_offsets, positions < end_key, is_fp8)
            key = fractions(key, is_fp8, query.dtype)

        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if key_scales_ptr is not None:
            scores *= key_scales[None, :]
        if softcap > 0.0:
            # softcap * tanh(score / softcap), by tanh(x) = 1 - 2 / (1 + exp(2 * x)).
            scores = tl.exp2(scores * (scale * (2.0 * LOG2_E / softcap)))
            scores = (softcap * LOG2_E) * (1.0 - 2.0 / (1.0 + scores))
        else:
            scores *= scale * LOG2_E
        if not all_visible:
            visible = (positions < end_key)[None, :]
            if is_causal:
                visible = visible & (positions[None, :] <= query_positions[:, None])
            if sliding_window > 0:
                visible = visible & (positions[None, :] > query_positions[:, None] - sliding_window)
            scores = tl.where(visible, scores, float("-inf"))

        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.exp2(scores - new_maximum[:, None])
        decay = tl.exp2(maximum - new_maximum)
        maximum = new_maximum
        normalizer = normalizer * decay + tl.sum(weights, 1)
        accumulator = accumulator * decay[:, None]
        if value_scales_ptr is not None:
            weights *= value_scales[None, :]
            value = fractions(value, is_fp8, query.dtype)
        accumulator = tl.dot(weights.to(value.dtype), value, accumulator, input_precision="ieee")
    return maximum, normalizer, accumulator
