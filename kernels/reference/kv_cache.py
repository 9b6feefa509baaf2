"""Pages in the plain layout.

    keys, values    [num_blocks, block_size, num_kv_heads, head_dim]
    scales          [num_blocks, num_kv_heads, block_size]

The scales that are read together, of one head's tokens, lie side by side.
"""

from __future__ import annotations

import torch

from infer.kernels.kv_pages import LARGEST, KVPages


def allocate_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    value_head_dim: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: torch.device,
) -> KVPages:
    """As `infer.kernels.backend.AllocateKVCache`. Elements have the same places whatever they are made of."""
    shape = (num_blocks, block_size, num_kv_heads)
    key = torch.zeros(*shape, head_dim, dtype=cache_dtype, device=device)
    value = torch.zeros(*shape, value_head_dim, dtype=cache_dtype, device=device)
    if cache_dtype not in LARGEST:
        return KVPages(key, value)
    key_scales, value_scales = torch.zeros(2, num_blocks, num_kv_heads, block_size, device=device)
    return KVPages(key, value, key_scales, value_scales)
