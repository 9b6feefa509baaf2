"""Scatter of the step's keys and values into the cache: an indexed assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.reference.quantize import quantize

if TYPE_CHECKING:
    import torch

    from infer.kernels.kv_pages import KVPages


def store_kv(key: torch.Tensor, value: torch.Tensor, pages: KVPages, slot_mapping: torch.Tensor) -> None:
    """As `infer.kernels.store_kv.store_kv`, on pages as `infer.kernels.reference.kv_cache` lays them out."""
    block_size = pages.key.shape[1]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    for heads, cache, scales in ((key, pages.key, pages.key_scales), (value, pages.value, pages.value_scales)):
        if scales is None:
            cache[blocks, offsets] = heads
        else:
            cache[blocks, offsets], scales[blocks, :, offsets] = quantize(heads, cache.dtype)
