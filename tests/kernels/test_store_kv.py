"""The reference of store_kv puts each token where the slot mapping says, and touches nothing else."""

from __future__ import annotations

import pytest
import torch

from infer.kernels.backend import select_backend
from infer.kernels.store_kv import store_kv

REFERENCE = select_backend(torch.device("cpu"), torch.float32, head_dim=2, block_size=2, preferred="reference")


def test_store_kv_writes_the_slots_and_nothing_else() -> None:
    key_cache = torch.zeros(3, 2, 1, 2)
    value_cache = torch.zeros(3, 2, 1, 1)
    key = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
    value = torch.tensor([[[5.0]], [[6.0]]])
    store_kv(key, value, key_cache, value_cache, torch.tensor([5, 2]), backend=REFERENCE)
    assert key_cache.tolist() == [[[[0, 0]], [[0, 0]]], [[[3, 4]], [[0, 0]]], [[[0, 0]], [[1, 2]]]]
    assert value_cache.tolist() == [[[[0]], [[0]]], [[[6]], [[0]]], [[[0]], [[5]]]]


def test_store_kv_takes_slices_of_a_wider_projection() -> None:
    projection = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0))
    key_cache, value_cache = REFERENCE.allocate_kv_cache(2, 2, 2, 2, 2, torch.float32, torch.device("cpu"))
    store_kv(projection[:, 1:3], projection[:, 3:5], key_cache, value_cache, torch.arange(4), backend=REFERENCE)
    assert torch.equal(key_cache.flatten(0, 1), projection[:, 1:3])
    assert torch.equal(value_cache.flatten(0, 1), projection[:, 3:5])


def test_store_kv_refuses_a_slot_mapping_of_another_length() -> None:
    caches = REFERENCE.allocate_kv_cache(2, 2, 1, 2, 2, torch.float32, torch.device("cpu"))
    with pytest.raises(AssertionError, match=r"torch.Size\(\[3\]\), torch.Size\(\[2, 1, 2\]\)"):
        store_kv(torch.ones(2, 1, 2), torch.ones(2, 1, 2), *caches, torch.arange(3), backend=REFERENCE)


def test_allocate_kv_cache_gives_zeros_by_block_token_and_head() -> None:
    key_cache, value_cache = REFERENCE.allocate_kv_cache(5, 4, 3, 8, 6, torch.bfloat16, torch.device("cpu"))
    assert torch.equal(key_cache, torch.zeros(5, 4, 3, 8, dtype=torch.bfloat16))
    assert torch.equal(value_cache, torch.zeros(5, 4, 3, 6, dtype=torch.bfloat16))
