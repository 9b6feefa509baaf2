"""Attention over a paged cache as the formula has it: gather, scores, softmax, weighted sum; one sequence at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infer.kernels.reference.quantize import dequantize

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.kv_pages import KVPages


def paged_attention(
    query: torch.Tensor,
    pages: KVPages,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `infer.kernels.paged_attention.paged_attention`, on pages as `infer.kernels.reference.kv_cache` lays them out.

    Computes in float32, or in float64 where the query is.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    block_size = pages.key.shape[1]
    output = query.new_empty(*query.shape[:2], pages.value.shape[-1])
    query_start_loc = metadata.query_start_loc.tolist()
    for index, seq_len in enumerate(metadata.seq_lens.tolist()):
        start, end = query_start_loc[index : index + 2]
        first_position = seq_len - (end - start)
        # What lies before the first query's window may already hold another sequence's tokens.
        first_key = max(0, first_position - sliding_window + 1) if sliding_window else 0
        positions = torch.arange(first_key, seq_len, device=query.device)
        blocks = metadata.block_table[index, positions // block_size]
        offsets = positions % block_size
        output[start:end] = _attend(
            query[start:end].to(dtype),
            _gather(pages.key, pages.key_scales, blocks, offsets, dtype),
            _gather(pages.value, pages.value_scales, blocks, offsets, dtype),
            _visible(positions, first_position, sliding_window),
            scale,
            softcap,
            sinks,
        )
    return output


def _gather(
    cache: torch.Tensor, scales: torch.Tensor | None, blocks: torch.Tensor, offsets: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """What the slots hold, `[num_slots, num_kv_heads, size]`."""
    elements = cache[blocks, offsets]
    return elements.to(dtype) if scales is None else dequantize(elements, scales[blocks, :, offsets], dtype)


def _visible(positions: torch.Tensor, first_position: int, sliding_window: int) -> torch.Tensor:
    """Which keys (columns, at `positions`) the queries (rows, from `first_position` to the last key) see, as bool."""
    query_positions = positions[positions >= first_position].unsqueeze(1)
    visible = positions <= query_positions
    if sliding_window:
        visible &= positions > query_positions - sliding_window
    return visible


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    softcap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax attention of `[num_queries, num_heads, head_dim]` over `[num_keys, num_kv_heads, head_dim]`."""
    num_queries, num_heads, head_dim = query.shape
    num_keys, num_kv_heads, _ = key.shape
    # The query heads of one KV head are the rows of one matrix: [num_kv_heads, group_size * num_queries, head_dim].
    queries = query.transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
    scores = (queries @ key.permute(1, 2, 0)).view(num_heads, num_queries, num_keys) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        sink = sinks.to(query.dtype).view(-1, 1, 1).expand(-1, num_queries, 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    output = weights.reshape(num_kv_heads, -1, num_keys) @ value.transpose(0, 1)
    return output.view(num_heads, num_queries, -1).transpose(0, 1)
