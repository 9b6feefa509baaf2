"""Layers and their attention are swapped only where the swap computes the same."""

from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import make_config

from infer.engine.attention import ATTENTION_NAME, register
from infer.engine.fused_attention import FusedAttention
from infer.engine.fused_layer import FusedDecoderLayer
from infer.engine.fusion import fuse_kernels
from infer.kernels.backend import select_backend


def count_fused(kind, model_type, dtype, **overrides):
    register()
    config = make_config(model_type, **overrides)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)
    model = model.to(dtype).eval().requires_grad_(False)
    fuse_kernels(model, select_backend(torch.device("cpu"), dtype, head_dim=32, block_size=16))
    return sum(type(module) is kind for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model_type", "num_layers"),
    # OLMo 2 norms all heads together, Gemma 3 by other norms; GPT-NeoX and Phi-3 have one projection for all.
    [
        ("llama", 3),
        ("qwen2", 3),
        ("mistral", 3),
        ("gemma2", 3),
        ("qwen3", 3),
        ("qwen3_moe", 3),
        ("olmo2", 0),
        ("gemma3_text", 0),
        ("phi3", 0),
    ],
)
def test_attention_is_swapped_only_where_it_computes_the_same(model_type, num_layers, dtype):
    assert count_fused(FusedAttention, model_type, dtype) == num_layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    # Gemma 2 has norms of another kind, and more of them. The experts of Mixtral are no gated layer.
    ("model_type", "num_layers"),
    [("llama", 3), ("qwen2", 3), ("mistral", 3), ("gemma2", 0), ("qwen3", 3), ("mixtral", 0)],
)
def test_layers_are_swapped_only_where_they_compute_the_same(model_type, num_layers, dtype):
    assert count_fused(FusedDecoderLayer, model_type, dtype) == num_layers


def test_attention_whose_heads_do_not_suit_the_kernel_is_left():
    assert count_fused(FusedAttention, "llama", torch.bfloat16, head_dim=16) == 0
