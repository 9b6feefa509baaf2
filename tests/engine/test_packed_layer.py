"""Layers packed as a whole give what their parts give."""

from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import make_config
from torch import nn

from infer.engine.attention import ATTENTION_NAME, register
from infer.engine.fusion import fuse_kernels
from infer.engine.packed_layer import PackedDecoderLayer, pack_layers
from infer.engine.prepack import prepack_linears
from infer.engine.probing import AttentionRecorder, random_angles, random_hidden
from infer.kernels.backend import select_backend
from infer.kernels.linear import why_not_cpu

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def make_model(model_type, dtype, **overrides):
    """Of random weights, its kernels fused."""
    register()
    torch.manual_seed(0)
    config = make_config(model_type, **overrides)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)
    model = model.to(dtype).eval().requires_grad_(False)
    fuse_kernels(model, select_backend(torch.device("cpu"), dtype, head_dim=32, block_size=16))
    return model


def count(kind, model):
    return sum(type(module) is kind for module in model.modules())


def needs_products(dtype):
    if why_not_cpu(dtype, 2) is not None:
        pytest.skip(f"this CPU has no fast products of {dtype}")


@both_dtypes
@pytest.mark.parametrize(
    ("model_type", "num_layers"), [("llama", 3), ("qwen2", 3), ("mistral", 3), ("gemma2", 0), ("qwen3", 3)]
)
def test_layers_that_were_fused_are_packed(model_type, num_layers, dtype):
    needs_products(dtype)
    model = make_model(model_type, dtype)
    assert pack_layers(model, "auto") == 4 * num_layers
    assert count(PackedDecoderLayer, model) == num_layers
    prepack_linears(model, "auto")
    assert count(nn.Linear, model) == 0


def test_layers_are_left_to_onednn_where_it_is_asked_for():
    assert pack_layers(make_model("llama", torch.float32), "onednn") == 0


@both_dtypes
# Qwen 2 has biases.
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_packed_layer_makes_of_a_row_what_its_parts_make(model_type, dtype):
    needs_products(dtype)
    parts, whole = make_model(model_type, dtype), make_model(model_type, dtype)
    prepack_linears(parts, "cpu")
    pack_layers(whole, "cpu")
    hidden = random_hidden(parts.config.hidden_size, dtype)
    angles = random_angles(parts.model.layers[0].self_attn.head_dim, dtype)
    expected, actual = (
        model.model.layers[0](hidden, position_embeddings=angles, attention_context=AttentionRecorder())
        for model in (parts, whole)
    )
    assert torch.equal(actual, expected)
