"""rotary_store_kv as the formula has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infer.kernels.reference.store_kv import store_kv as store_in_reference_cache

if TYPE_CHECKING:
    from infer.kernels.backend import StoreKV
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
    *,
    store_kv: StoreKV = store_in_reference_cache,
) -> torch.Tensor:
    """As `infer.kernels.rotary_store_kv.rotary_store_kv`, for whichever cache `store_kv` knows."""
    store_kv(rotary_embedding(key, cos, sin), value, pages, slot_mapping)
    return rotary_embedding(query, cos, sin)
