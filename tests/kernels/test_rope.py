"""rotary_embedding: every implementation against the reference, and the reference against transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from infer.kernels import cpu, reference


def make_inputs(num_tokens, num_heads, head_dim, dtype):
    torch.manual_seed(num_tokens)
    heads = torch.randn(num_tokens, num_heads, head_dim).to(dtype)
    cos, sin = torch.randn(2, num_tokens, head_dim).to(dtype)
    return heads, cos, sin


def test_reference_is_what_transformers_computes():
    heads, cos, sin = make_inputs(7, 3, 32, torch.float32)
    expected, _ = apply_rotary_pos_emb(heads.transpose(0, 1)[None], heads.transpose(0, 1)[None], cos[None], sin[None])
    torch.testing.assert_close(reference.rotary_embedding(heads, cos, sin), expected[0].transpose(0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [0, 1, 17, 63, 1000])
@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 32), (3, 64), (2, 96)])
def test_cpu_equals_the_reference(num_tokens, num_heads, head_dim, dtype):
    inputs = make_inputs(num_tokens, num_heads, head_dim, dtype)
    torch.testing.assert_close(cpu.rotary_embedding(*inputs), reference.rotary_embedding(*inputs))


def test_cpu_takes_the_heads_out_of_one_product():
    product, cos, sin = make_inputs(21, 5, 64, torch.bfloat16)
    heads = product.flatten(1)[:, 64:256].unflatten(-1, (-1, 64))
    assert not heads.is_contiguous()
    torch.testing.assert_close(cpu.rotary_embedding(heads, cos, sin), reference.rotary_embedding(heads, cos, sin))


def test_cpu_is_bit_identical_in_bfloat16():
    inputs = make_inputs(50, 3, 64, torch.bfloat16)
    assert torch.equal(cpu.rotary_embedding(*inputs), reference.rotary_embedding(*inputs))
