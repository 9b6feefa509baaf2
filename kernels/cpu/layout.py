"""How the CPU kernels lay a block of the KV cache out: tiles of 16 tokens, ready for vector registers.

Float32, one tile of one KV head:

    key    [head_dim][16 tokens]            a register holds one dimension of 16 keys
    value  [16 tokens][value_head_dim]

Bfloat16 lies in pairs, because its dot product instructions add two products at once:

    key    [head_dim / 2][16 tokens][2 dimensions]
    value  [8][value_head_dim][2 tokens]

Quantised elements lie where unquantised ones of the computation's dtype would, and beside each tile its scales, [16].

A block is `[num_kv_heads][block_size / 16]` such tiles.
"""

from __future__ import annotations

import math

import torch

from infer.kernels.cpu.huge_pages import map_zeros
from infer.kernels.kv_pages import LARGEST, KVPages

TILE = 16
"""Tokens in a tile: the float32 lanes of a 512-bit register."""

AS_COMPUTED, INT8, FP8 = 0, 1, 2
"""What compiled code is told of the elements of pages: those that are computed with, or quantised."""


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
    """As `infer.kernels.backend.AllocateKVCache`."""
    assert device.type == "cpu", device
    tiles = (num_blocks, num_kv_heads, block_size // TILE)
    key_shape: tuple[int, ...] = (*tiles, head_dim, TILE)
    value_shape: tuple[int, ...] = (*tiles, TILE, value_head_dim)
    if dtype == torch.bfloat16:
        key_shape, value_shape = (*tiles, head_dim // 2, TILE, 2), (*tiles, TILE // 2, value_head_dim, 2)
    key, value = _allocate(key_shape, cache_dtype), _allocate(value_shape, cache_dtype)
    if cache_dtype not in LARGEST:
        return KVPages(key, value)
    scales_shape = (*tiles, TILE)
    return KVPages(key, value, _allocate(scales_shape, torch.float32), _allocate(scales_shape, torch.float32))


def _allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros. Tiles lie scattered: in small pages nearly each would cost a walk through the page table."""
    return torch.frombuffer(map_zeros(math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)


def addresses_and_format(pages: KVPages) -> tuple[int, ...]:
    """Of keys, values and their scales, 0 where there are none; then what the elements are."""
    tensors = (pages.key, pages.value, pages.key_scales, pages.value_scales)
    addresses = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
    return (*addresses, _FORMATS.get(pages.key.dtype, AS_COMPUTED))


_FORMATS = {torch.int8: INT8, torch.float8_e4m3fn: FP8}


def block_size_of(pages: KVPages) -> int:
    return pages.key.shape[2] * TILE


def num_kv_heads_of(pages: KVPages) -> int:
    return pages.key.shape[1]


def value_head_dim_of(pages: KVPages) -> int:
    return pages.value.shape[4]
