"""store_kv in Triton leaves the same caches as the reference."""

from __future__ import annotations

import pytest
import torch

from infer.kernels import reference

triton_kernels = pytest.importorskip("infer.kernels.triton")


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
) -> None:
    generator = torch.Generator().manual_seed(0)
    num_blocks = -(-num_tokens // block_size) + 2
    # Key and value are strided slices, as those of a fused projection are.
    projection = torch.randn(num_tokens, num_kv_heads, head_dim + value_head_dim, generator=generator).to(dtype)
    slot_mapping = torch.randperm(num_blocks * block_size, generator=generator)[:num_tokens]
    key_cache = torch.full((num_blocks, block_size, num_kv_heads, head_dim), torch.nan, dtype=dtype)
    value_cache = torch.full((num_blocks, block_size, num_kv_heads, value_head_dim), torch.nan, dtype=dtype)
    arguments = (projection[..., :head_dim], projection[..., head_dim:], key_cache, value_cache, slot_mapping)
    on_device = tuple(tensor.to(triton_device, copy=True) for tensor in arguments)
    reference.store_kv(*arguments)
    triton_kernels.store_kv(*on_device)
    for expected, actual in zip((key_cache, value_cache), on_device[2:4], strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=0.0, atol=0.0, equal_nan=True)
