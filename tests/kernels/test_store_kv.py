"""The reference of store_kv puts each token where the slot mapping says, and touches nothing else."""

from __future__ import annotations

import pytest
import torch

from infer.kernels.backend import select_backend
from infer.kernels.kv_pages import LARGEST, KVPages
from infer.kernels.reference.quantize import quantize
from infer.kernels.store_kv import store_kv

REFERENCE = select_backend(torch.device("cpu"), torch.float32, head_dim=2, block_size=2, preferred="reference")


def allocate(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    value_head_dim: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None = None,
) -> KVPages:
    sizes = (num_blocks, block_size, num_kv_heads, head_dim, value_head_dim)
    return REFERENCE.allocate_kv_cache(*sizes, dtype, cache_dtype or dtype, torch.device("cpu"))


def test_store_kv_writes_the_slots_and_nothing_else() -> None:
    pages = KVPages(torch.zeros(3, 2, 1, 2), torch.zeros(3, 2, 1, 1))
    key = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
    value = torch.tensor([[[5.0]], [[6.0]]])
    store_kv(key, value, pages, torch.tensor([5, 2]), backend=REFERENCE)
    assert pages.key.tolist() == [[[[0, 0]], [[0, 0]]], [[[3, 4]], [[0, 0]]], [[[0, 0]], [[1, 2]]]]
    assert pages.value.tolist() == [[[[0]], [[0]]], [[[6]], [[0]]], [[[0]], [[5]]]]


def test_store_kv_takes_slices_of_a_wider_projection() -> None:
    projection = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0))
    pages = allocate(2, 2, 2, 2, 2, torch.float32)
    store_kv(projection[:, 1:3], projection[:, 3:5], pages, torch.arange(4), backend=REFERENCE)
    assert torch.equal(pages.key.flatten(0, 1), projection[:, 1:3])
    assert torch.equal(pages.value.flatten(0, 1), projection[:, 3:5])


def test_store_kv_refuses_a_slot_mapping_of_another_length() -> None:
    pages = allocate(2, 2, 1, 2, 2, torch.float32)
    with pytest.raises(AssertionError, match=r"torch.Size\(\[3\]\), torch.Size\(\[2, 1, 2\]\)"):
        store_kv(torch.ones(2, 1, 2), torch.ones(2, 1, 2), pages, torch.arange(3), backend=REFERENCE)


def test_allocate_kv_cache_gives_zeros_by_block_token_and_head() -> None:
    pages = allocate(5, 4, 3, 8, 6, torch.bfloat16)
    assert torch.equal(pages.key, torch.zeros(5, 4, 3, 8, dtype=torch.bfloat16))
    assert torch.equal(pages.value, torch.zeros(5, 4, 3, 6, dtype=torch.bfloat16))
    assert (pages.key_scales, pages.value_scales) == (None, None)


@pytest.mark.parametrize("cache_dtype", LARGEST, ids=str)
def test_quantized_pages_have_a_scale_a_token_and_head(cache_dtype) -> None:
    pages = allocate(5, 4, 3, 8, 6, torch.bfloat16, cache_dtype)
    assert [tensor.dtype for tensor in pages.tensors()] == [cache_dtype, cache_dtype, torch.float32, torch.float32]
    assert [tuple(tensor.shape) for tensor in pages.tensors()] == [(5, 4, 3, 8), (5, 4, 3, 6), (5, 3, 4), (5, 3, 4)]
    assert not any(tensor.float().any() for tensor in pages.tensors())


@pytest.mark.parametrize("cache_dtype", LARGEST, ids=str)
def test_store_kv_quantizes_each_head_of_a_token_by_itself(cache_dtype) -> None:
    key, value = torch.randn(2, 7, 3, 8, generator=torch.Generator().manual_seed(0))
    slots = torch.tensor([3, 9, 0, 19, 4, 12, 11])
    pages = allocate(5, 4, 3, 8, 8, torch.float32, cache_dtype)
    store_kv(key, value, pages, slots, backend=REFERENCE)
    for heads, elements, scales in ((key, pages.key, pages.key_scales), (value, pages.value, pages.value_scales)):
        expected, expected_scales = quantize(heads, cache_dtype)
        assert torch.equal(elements.flatten(0, 1)[slots].float(), expected.float())
        assert torch.equal(scales.transpose(1, 2).flatten(0, 1)[slots], expected_scales)
        assert elements.float().ne(0).any(-1).sum() == scales.ne(0).sum() == 7 * 3
