"""store_kv: writes the step's keys and values into their slots of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    backend: Backend,
) -> None:
    """Changes the caches in place; nothing else of them is touched.

    key: `[num_tokens, num_kv_heads, head_dim]`
    value: `[num_tokens, num_kv_heads, value_head_dim]`
    key_cache, value_cache: allocated by `backend`, of the same dtype
    slot_mapping: int64 `[num_tokens]`, block_id * block_size + offset, no slot twice
    """
    assert key.dim() == value.dim() == 3, (key.shape, value.shape)
    assert key.shape[:2] == value.shape[:2], (key.shape, value.shape)
    assert slot_mapping.shape == key.shape[:1], (slot_mapping.shape, key.shape)
    assert key_cache.shape[0] == value_cache.shape[0], (key_cache.shape, value_cache.shape)
    backend.store_kv(key, value, key_cache, value_cache, slot_mapping)
