"""Scatter of the step's keys and values into the cache: an indexed assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """As `infer.kernels.store_kv.store_kv`, on caches `[num_blocks, block_size, num_kv_heads, head_dim]`."""
    key_cache.flatten(0, 1)[slot_mapping] = key
    value_cache.flatten(0, 1)[slot_mapping] = value
