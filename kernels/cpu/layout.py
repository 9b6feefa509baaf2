"""How the CPU kernels lay a block of the KV cache out: tiles of 16 tokens, ready for vector registers.

Float32, one tile of one KV head:

    key    [head_dim][16 tokens]            a register holds one dimension of 16 keys
    value  [16 tokens][value_head_dim]

Bfloat16 lies in pairs, because its dot product instructions add two products at once:

    key    [head_dim / 2][16 tokens][2 dimensions]
    value  [8][value_head_dim][2 tokens]

A block is `[num_kv_heads][block_size / 16]` such tiles.
"""

from __future__ import annotations

import math
import mmap

import torch

TILE = 16
"""Tokens in a tile: the float32 lanes of a 512-bit register."""


def allocate_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    value_head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zero-filled key and value cache; dimension 0 of both is the block."""
    assert device.type == "cpu", device
    tiles = (num_blocks, num_kv_heads, block_size // TILE)
    key_shape: tuple[int, ...] = (*tiles, head_dim, TILE)
    value_shape: tuple[int, ...] = (*tiles, TILE, value_head_dim)
    if dtype == torch.bfloat16:
        key_shape, value_shape = (*tiles, head_dim // 2, TILE, 2), (*tiles, TILE // 2, value_head_dim, 2)
    return _allocate(key_shape, dtype), _allocate(value_shape, dtype)


def _allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros in huge pages, where the system has them: tiles lie scattered, and in small pages nearly each would cost a
    walk through the page table."""
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def block_size_of(key_cache: torch.Tensor) -> int:
    return key_cache.shape[2] * TILE


def num_kv_heads_of(key_cache: torch.Tensor) -> int:
    return key_cache.shape[1]


def value_head_dim_of(value_cache: torch.Tensor) -> int:
    return value_cache.shape[4]
