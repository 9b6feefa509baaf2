"""How many blocks a run gets: what it needs, in the memory there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from infer.engine.attention import LayerSpec
from infer.engine.errors import ConfigError
from infer.engine.kv_cache import KVCacheSpec, allocate_kv_cache, fit_num_blocks
from infer.kernels.backend import select_backend

CPU = torch.device("cpu")
SPEC = KVCacheSpec((LayerSpec(2, 8, 8, 0), LayerSpec(1, 16, 8, 0)), block_size=4, dtype=torch.float32)


def fit(num_bytes=1 << 30, **settings):
    defaults = {
        "num_blocks": None,
        "max_num_seqs": 10,
        "max_model_len": 100,
        "num_requests": None,
        "max_request_tokens": 20,
        "keep_prefixes": False,
    }
    return fit_num_blocks(SPEC, num_bytes, **(defaults | settings))


def test_block_counts_all_layers_keys_and_values():
    assert SPEC.num_bytes_per_block == (2 * (8 + 8) + 1 * (16 + 8)) * 4 * 4


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_block_takes_as_many_bytes_as_its_rows_of_the_tensors(name, dtype, kv_cache_dtype):
    spec = KVCacheSpec((LayerSpec(2, 32, 32, 0), LayerSpec(1, 48, 16, 0)), 16, dtype, kv_cache_dtype)
    backend = select_backend(
        CPU, dtype, head_dim=48, value_head_dim=16, block_size=16, cache_dtype=spec.cache_dtype, preferred=name
    )
    cache = allocate_kv_cache(spec, 3, backend, CPU)
    assert sum(tensor.nbytes for tensor in cache.tensors()) == 4 * spec.num_bytes_per_block
    assert {len(tensor) for tensor in cache.tensors()} == {4}


def test_name_of_what_blocks_hold_is_the_models_dtype_or_the_quantised_one():
    names = {
        KVCacheSpec(SPEC.layers, 16, dtype, kv_cache_dtype).cache_dtype_name
        for dtype in (torch.float32, torch.bfloat16)
        for kv_cache_dtype in ("auto", "int8", "fp8")
    }
    assert names == {"float32", "bfloat16", "int8", "fp8"}


def test_cache_holds_max_num_seqs_of_the_longest_request():
    assert fit() == 10 * 5


def test_cache_is_doubled_to_keep_prefixes():
    assert fit(keep_prefixes=True) == 2 * 10 * 5


def test_few_requests_need_few_blocks_but_always_one_of_full_length():
    assert fit(num_requests=3, max_request_tokens=80) == 3 * 20
    assert fit(num_requests=3) == 25


def test_request_length_is_bounded_by_the_models():
    assert fit(max_request_tokens=10**9) == 10 * 25


def test_cache_takes_no_more_than_the_memory():
    assert fit(num_bytes=7 * SPEC.num_bytes_per_block + 1) == 7


def test_no_memory_is_refused_with_the_figures():
    with pytest.raises(ConfigError, match=r"1 blocks are the least, a block takes 896 bytes, 895 are left"):
        fit(num_bytes=895)


def test_number_of_blocks_that_is_asked_for_is_given_where_it_fits():
    assert fit(num_blocks=3) == 3
    with pytest.raises(ConfigError, match=r"8 blocks are the least, a block takes 896 bytes, 7,167 are left"):
        fit(num_blocks=8, num_bytes=8 * 896 - 1)


def test_allocated_cache_has_the_null_block_too():
    backend = select_backend(CPU, torch.float32, head_dim=8, block_size=4, preferred="reference")
    cache = allocate_kv_cache(SPEC, 3, backend, CPU)
    assert [len(tensor) for tensor in cache.tensors()] == [4] * 4


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_blocks_are_copied_in_every_layer_and_all_read_before_any_is_written(kv_cache_dtype):
    backend = select_backend(CPU, torch.float32, head_dim=8, block_size=4, preferred="reference")
    cache = allocate_kv_cache(replace(SPEC, kv_cache_dtype=kv_cache_dtype), 3, backend, CPU)
    for tensor in cache.tensors():
        tensor.copy_(torch.arange(4.0).view(-1, *[1] * (tensor.ndim - 1)).expand_as(tensor))
    cache.copy_blocks([(1, 2), (2, 3)])
    assert len(list(cache.tensors())) == (4 if kv_cache_dtype == "auto" else 8)
    for tensor in cache.tensors():
        assert [set(block.flatten().tolist()) for block in tensor] == [{0.0}, {1.0}, {1.0}, {2.0}]
