"""rotary_store_kv as the formula has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infer.kernels.reference.rms_norm import rms_norm
from infer.kernels.reference.store_kv import store_kv as store_in_reference_cache

if TYPE_CHECKING:
    from infer.kernels.backend import StoreKV
    from infer.kernels.head_norms import HeadNorms
    from infer.kernels.kv_pages import KVPages


def rotary_embedding(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`heads * cos + rotate_half(heads) * sin`, both products rounded to the dtype before they are added.

    heads: `[num_tokens, num_heads, head_dim]`
    cos, sin: `[num_tokens, head_dim]`
    """
    first, second = heads.chunk(2, -1)
    return heads * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]


def rotary_store_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: KVPages,
    slot_mapping: torch.Tensor,
    norms: HeadNorms | None = None,
    *,
    store_kv: StoreKV = store_in_reference_cache,
) -> torch.Tensor:
    """As `infer.kernels.rotary_store_kv.rotary_store_kv`, for whichever cache `store_kv` knows."""
    query, key = norm_heads(query, key, norms)
    store_kv(rotary_embedding(key, cos, sin), value, pages, slot_mapping)
    return rotary_embedding(query, cos, sin)


def norm_heads(query: torch.Tensor, key: torch.Tensor, norms: HeadNorms | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as they are where there are no norms."""
    if norms is None:
        return query, key
    return rms_norm(query, norms.query_weight, norms.eps), rms_norm(key, norms.key_weight, norms.eps)
