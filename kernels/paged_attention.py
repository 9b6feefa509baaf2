"""paged_attention: causal attention of the step's queries over the keys and values in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.operators import Work, operator

if TYPE_CHECKING:
    import torch

    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.backend import Backend
    from infer.kernels.kv_pages import KVPages


@operator(Work.ATTENTION)
def paged_attention(
    query: torch.Tensor,
    pages: KVPages,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    backend: Backend,
) -> torch.Tensor:
    """The step's keys and values must already be stored.

    query: `[num_tokens, num_heads, head_dim]`; head `h` reads KV head `h // (num_heads // num_kv_heads)`
    pages: allocated by `backend`
    scale: multiplies the scores before anything else
    sliding_window: `w > 0` lets a query at position `p` see keys `p - w + 1` to `p`
    softcap: `s > 0` replaces a score by `s * tanh(score / s)`
    sinks: `[num_heads]`, one more logit of each head in the denominator of its softmax

    Returns `[num_tokens, num_heads, value_head_dim]` in the query's dtype.
    """
    assert query.dim() == 3, query.shape
    assert metadata.slot_mapping.shape == query.shape[:1], (metadata.slot_mapping.shape, query.shape)
    assert sliding_window >= 0, sliding_window
    assert softcap >= 0.0, softcap
    assert sinks is None or sinks.shape == query.shape[1:2], (sinks.shape, query.shape)
    return backend.paged_attention(
        query,
        pages,
        metadata,
        scale=scale,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=sinks,
    )
