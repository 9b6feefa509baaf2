"""Attention over a paged cache on a GPU: sequences with one query by `decode`, the others by `prefill`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.triton.decode import decode_attention
from infer.kernels.triton.prefill import prefill_attention
from infer.kernels.triton.quantized import layout_of

if TYPE_CHECKING:
    import torch

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

    The last dimension of the query must be contiguous. Accumulates in float32.
    """
    tensors = (query, metadata.block_table)
    assert all(tensor.stride(-1) == 1 for tensor in tensors), [tensor.stride() for tensor in tensors]
    assert all(tensor.is_contiguous() for tensor in pages.tensors()), [tensor.stride() for tensor in pages.tensors()]
    output = query.new_empty(*query.shape[:2], pages.value.shape[-1])
    arguments = (output, query, layout_of(pages), metadata, scale, sliding_window, softcap, sinks)
    if metadata.num_decodes > 0:
        decode_attention(*arguments)
    if metadata.num_decodes < metadata.seq_lens.shape[0]:
        prefill_attention(*arguments)
    return output
