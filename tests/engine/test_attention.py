"""What the probe learns from a network, and which networks it refuses by name."""

from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import make_config

from infer.engine.attention import ATTENTION_NAME, LayerSpec, probe_layers, register
from infer.engine.errors import ModelError


def build(config):
    register()
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME).eval()


def test_probe_reads_shapes_and_windows_of_every_layer():
    config = make_config("gemma2")
    assert probe_layers(build(config), config) == [
        LayerSpec(2, 32, 32, 24),
        LayerSpec(2, 32, 32, 0),
        LayerSpec(2, 32, 32, 24),
    ]


def test_probe_leaves_no_trace_in_the_model():
    config = make_config("llama")
    model = build(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probe_layers(model, config)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


QWEN3_NEXT = {
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [("bloom", {"n_layer": 2, "n_head": 4}), ("mamba", {"num_hidden_layers": 2}), ("qwen3_next", QWEN3_NEXT)],
)
def test_architecture_without_standard_attention_is_refused_by_name(model_type, settings):
    register()
    config = transformers.CONFIG_MAPPING[model_type](vocab_size=64, hidden_size=32, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ModelError, match=f"architecture {model_type} cannot be run exactly: "):
        probe_layers(model, config)
