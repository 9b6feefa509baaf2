"""store_kv in Triton leaves the same caches as the reference."""

from __future__ import annotations

import pytest
import torch
from paged_cases import fill_with_nan

from infer.kernels import reference
from infer.kernels.kv_pages import LARGEST, KVPages

triton_kernels = pytest.importorskip("infer.kernels.triton")


@pytest.mark.parametrize("cache_dtype", [None, *LARGEST], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_kv_heads", "head_dim", "value_head_dim", "block_size"),
    [(1, 1, 1, 1, 1), (16, 2, 64, 64, 16), (33, 3, 20, 12, 5), (50, 1, 80, 128, 7)],
)
def test_triton_store_kv_equals_the_reference(
    triton_device: str,
    num_tokens: int,
    num_kv_heads: int,
    head_dim: int,
    value_head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None,
) -> None:
    generator = torch.Generator().manual_seed(0)
    num_blocks = -(-num_tokens // block_size) + 2
    # Key and value are strided slices, as those of a fused projection are.
    projection = torch.randn(num_tokens, num_kv_heads, head_dim + value_head_dim, generator=generator).to(dtype)
    slot_mapping = torch.randperm(num_blocks * block_size, generator=generator)[:num_tokens]
    sizes = (num_blocks, block_size, num_kv_heads, head_dim, value_head_dim)
    expected = reference.allocate_kv_cache(*sizes, dtype, cache_dtype or dtype, torch.device("cpu"))
    fill_with_nan(expected)
    stored = KVPages(*(tensor.to(triton_device, copy=True) for tensor in expected.tensors()))
    reference.store_kv(projection[..., :head_dim], projection[..., head_dim:], expected, slot_mapping)
    projection, slot_mapping = projection.to(triton_device), slot_mapping.to(triton_device)
    triton_kernels.store_kv(projection[..., :head_dim], projection[..., head_dim:], stored, slot_mapping)
    for actual, tensor in zip(stored.tensors(), expected.tensors(), strict=True):
        assert torch.equal(actual.cpu().view(torch.uint8), tensor.view(torch.uint8))
