"""rotary_store_kv: every implementation against the reference, and the reference against transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from infer.kernels import cpu, reference
from infer.kernels.kv_pages import LARGEST
from infer.kernels.reference.rotary_store_kv import rotary_embedding

CPU = torch.device("cpu")


def make_inputs(num_tokens, num_heads, num_kv_heads, head_dim, dtype):
    """Views into one product, as a merged projection gives them."""
    torch.manual_seed(num_tokens)
    product = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim).to(dtype)
    query, key, value = product.split([num_heads, num_kv_heads, num_kv_heads], 1)
    cos, sin = torch.randn(2, num_tokens, head_dim).to(dtype)
    slots = torch.randperm(num_tokens + 40)[:num_tokens]
    return query, key, value, cos, sin, slots


def run(query, key, value, cos, sin, slots, *, turn_and_store, cache_dtype):
    """Returns the query and what the pages hold."""
    sizes = (-(-(len(slots) + 40) // 16), 16, *key.shape[1:], value.shape[2])
    pages = cpu.allocate_kv_cache(*sizes, query.dtype, cache_dtype or query.dtype, CPU)
    return turn_and_store(query, key, value, cos, sin, pages, slots), *pages.tensors()


def in_two_steps(query, key, value, cos, sin, pages, slots):
    cpu.store_kv(rotary_embedding(key, cos, sin), value, pages, slots)
    return rotary_embedding(query, cos, sin)


def test_reference_turns_as_transformers_does():
    query, key, _, cos, sin, _ = make_inputs(7, 3, 1, 32, torch.float32)
    query, key = query.contiguous(), key.contiguous()
    expected = apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], cos[None], sin[None])
    for heads, turned in zip((query, key), expected, strict=True):
        torch.testing.assert_close(rotary_embedding(heads, cos, sin), turned[0].transpose(0, 1))


def test_reference_stores_turned_keys_and_values_as_they_are():
    query, key, value, cos, sin, slots = make_inputs(9, 3, 2, 32, torch.float32)
    pages = reference.allocate_kv_cache(4, 16, 2, 32, 32, torch.float32, torch.float32, CPU)
    turned = reference.rotary_store_kv(query, key, value, cos, sin, pages, slots)
    assert torch.equal(turned, rotary_embedding(query, cos, sin))
    assert torch.equal(pages.key.flatten(0, 1)[slots], rotary_embedding(key, cos, sin))
    assert torch.equal(pages.value.flatten(0, 1)[slots], value)


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [(torch.float32, None), (torch.bfloat16, None), *((torch.bfloat16, each) for each in LARGEST)],
    ids=str,
)
@pytest.mark.parametrize("num_tokens", [0, 1, 17, 63, 1000])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(1, 1, 32), (9, 3, 64), (4, 2, 96)])
def test_cpu_equals_the_definition(num_tokens, num_heads, num_kv_heads, head_dim, dtype, cache_dtype):
    inputs = make_inputs(num_tokens, num_heads, num_kv_heads, head_dim, dtype)
    fused, expected = (
        run(*inputs, turn_and_store=each, cache_dtype=cache_dtype) for each in (cpu.rotary_store_kv, in_two_steps)
    )
    for result, reference_result in zip(fused, expected, strict=True):
        if dtype is torch.bfloat16:
            assert torch.equal(result.view(torch.uint8), reference_result.view(torch.uint8))
        else:
            torch.testing.assert_close(result, reference_result)
