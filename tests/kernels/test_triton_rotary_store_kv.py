"""rotary_store_kv in Triton turns and stores what the reference does, with norms of the heads and without."""

from __future__ import annotations

import pytest
import torch
from paged_cases import fill_with_nan

from infer.kernels import reference
from infer.kernels.head_norms import HeadNorms
from infer.kernels.kv_pages import LARGEST, KVPages

triton_kernels = pytest.importorskip("infer.kernels.triton")
pytestmark = pytest.mark.usefixtures("_nan_filled")

CPU = torch.device("cpu")
BLOCK_SIZE = 5


def on(device, *tensors):
    return [tensor.to(device, copy=True) for tensor in tensors]


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [(torch.float32, None), (torch.float16, None), *((torch.float32, each) for each in LARGEST)],
    ids=str,
)
@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "num_kv_heads", "head_dim", "value_head_dim"),
    [(0, 1, 1, 32, 32), (1, 1, 1, 2, 1), (17, 4, 2, 32, 32), (7, 3, 1, 80, 48), (33, 2, 2, 128, 128)],
)
def test_triton_equals_the_reference(
    triton_device, num_tokens, num_heads, num_kv_heads, head_dim, value_head_dim, dtype, cache_dtype, has_norms
):
    torch.manual_seed(num_tokens)
    # Views into one product, as a merged projection gives them.
    product = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim).to(dtype)
    query, key, value = product.split([num_heads, num_kv_heads, num_kv_heads], 1)
    value = value[..., :value_head_dim]
    cos, sin = torch.randn(2, num_tokens, head_dim).to(dtype)
    weights = torch.randn(2, head_dim).to(dtype)
    slots = torch.randperm(num_tokens + 9)[:num_tokens]
    sizes = (num_tokens // BLOCK_SIZE + 3, BLOCK_SIZE, num_kv_heads, head_dim, value_head_dim)
    expected_pages = reference.allocate_kv_cache(*sizes, dtype, cache_dtype or dtype, CPU)
    fill_with_nan(expected_pages)
    pages = KVPages(*on(triton_device, *expected_pages.tensors()))
    norms = HeadNorms(*weights, 1e-6) if has_norms else None
    expected = reference.rotary_store_kv(query, key, value, cos, sin, expected_pages, slots, norms)
    product, cos, sin, slots, weights = on(triton_device, product, cos, sin, slots, weights)
    query, key, value = product.split([num_heads, num_kv_heads, num_kv_heads], 1)
    norms = HeadNorms(*weights, 1e-6) if has_norms else None
    value = value[..., :value_head_dim]
    turned = triton_kernels.rotary_store_kv(query, key, value, cos, sin, pages, slots, norms)
    assert_close(turned.cpu(), expected)
    for actual, tensor in zip(pages.tensors(), expected_pages.tensors(), strict=True):
        if cache_dtype is None:
            assert_close(actual.cpu(), tensor)
        else:
            # What is rounded to 8 bits may round to the next number where the factor of a norm differs by a bit.
            step = {torch.int8: 1.0, torch.float8_e4m3fn: 2**-3}.get(tensor.dtype, 1e-6)
            torch.testing.assert_close(
                actual.cpu().float(), tensor.float(), equal_nan=True, rtol=step, atol=step if has_norms else 0.0
            )


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, equal_nan=True)
