"""Copies between device and host memory: every byte of a block, of every layer, and nothing beside it."""

from __future__ import annotations

import pytest
import torch

from infer.engine.host_cache import HostCache
from infer.engine.kv_cache import KVCache
from infer.kernels.backend import select_backend
from infer.kernels.kv_pages import KVPages


def make_cache(shapes, dtype=torch.float16):
    backend = select_backend(torch.device("cpu"), torch.float32, head_dim=8, block_size=3, preferred="reference")
    layers = [KVPages(torch.randn(50, *shape).to(dtype), torch.randn(50, *shape[:-1], 3).to(dtype)) for shape in shapes]
    return KVCache(tuple(layers), backend)


@pytest.mark.parametrize("shapes", [[(3, 2, 8)], [(3, 1, 5), (3, 2, 8), (7, 1)]], ids=["even", "odd"])
def test_block_comes_back_as_it_was_wherever_it_goes(shapes):
    cache = make_cache(shapes)
    before = [tensor.clone() for tensor in cache.tensors()]
    host = HostCache(cache, 60)
    moved = list(range(1, 46))
    host.copy_out([(block_id, 60 - block_id) for block_id in moved])
    for tensor in cache.tensors():
        tensor.fill_(torch.nan)
    host.copy_in([(60 - block_id, block_id + 1) for block_id in moved])
    for tensor, old in zip(cache.tensors(), before, strict=True):
        assert torch.equal(tensor[2:47], old[1:46])
        assert tensor[:2].isnan().all()
        assert tensor[47:].isnan().all()


def test_row_holds_all_bytes_of_a_block():
    cache = make_cache([(3, 2, 8), (3, 1, 8)])
    host = HostCache(cache, 4)
    host.copy_out([(7, 2)])
    expected = b"".join(tensor[7].numpy().tobytes() for tensor in cache.tensors())
    assert host.row(2).numpy().tobytes() == expected
    assert len(expected) == host.num_bytes_per_block


def test_no_copies_take_no_memory():
    host = HostCache(make_cache([(3, 2, 8)]), 1 << 50)
    host.copy_out([])
    host.copy_in([])
