"""store_kv: writes the step's keys and values into their slots of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.operators import Work, operator

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend
    from infer.kernels.kv_pages import KVPages


@operator(Work.OTHER)
def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    pages: KVPages,
    slot_mapping: torch.Tensor,
    *,
    backend: Backend,
) -> None:
    """Changes the pages in place; nothing else of them is touched.

    key: `[num_tokens, num_kv_heads, head_dim]`
    value: `[num_tokens, num_kv_heads, value_head_dim]`
    pages: allocated by `backend` for this dtype
    slot_mapping: int64 `[num_tokens]`, block_id * block_size + offset, no slot twice
    """
    assert key.dim() == value.dim() == 3, (key.shape, value.shape)
    assert key.shape[:2] == value.shape[:2], (key.shape, value.shape)
    assert slot_mapping.shape == key.shape[:1], (slot_mapping.shape, key.shape)
    backend.store_kv(key, value, pages, slot_mapping)
