"""The cache of keys and values in its plain layout: block, token in the block, KV head, element."""

from __future__ import annotations

import torch


def allocate_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    value_head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Key cache `[num_blocks, block_size, num_kv_heads, head_dim]` and value cache `[..., value_head_dim]` of zeros."""
    shape = (num_blocks, block_size, num_kv_heads)
    key_cache = torch.zeros(*shape, head_dim, dtype=dtype, device=device)
    value_cache = torch.zeros(*shape, value_head_dim, dtype=dtype, device=device)
    return key_cache, value_cache
