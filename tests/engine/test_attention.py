"""What the probe learns from a network, and which networks it refuses by name."""

from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import VOCAB_SIZE, make_config, make_tokenizer

from infer.engine.attention import ATTENTION_NAME, LayerSpec, probe_layers, register
from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
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


GRANITE_HYBRID = {
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "shared_intermediate_size": 32,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "layer_types": ["mamba", "attention", "mamba", "attention"],
}


@pytest.mark.parametrize(
    ("model_type", "settings", "layers"),
    [
        ("mamba", {"num_hidden_layers": 2}, "0, 1 (MambaMixer)"),
        ("mamba2", {"num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "n_groups": 1}, "0, 1 (Mamba2Mixer)"),
        ("qwen3_next", QWEN3_NEXT, "0, 1, 2 (Qwen3NextGatedDeltaNet)"),
        ("granitemoehybrid", GRANITE_HYBRID, "0, 2 (GraniteMoeHybridMambaLayer)"),
    ],
)
def test_architecture_with_state_layers_is_refused_by_name_with_the_reason(tmp_path, model_type, settings, layers):
    config = transformers.CONFIG_MAPPING[model_type](vocab_size=VOCAB_SIZE, hidden_size=32, **settings)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError) as refused:
        Engine(EngineConfig(model=str(tmp_path)))
    assert str(refused.value) == (
        f"architecture {model_type} cannot be run exactly: no standard attention in layers {layers}: "
        "a state they keep is not in the kv cache"
    )


def test_architecture_that_hands_no_argument_on_is_refused_by_name():
    register()
    config = transformers.CONFIG_MAPPING["bloom"](vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(ModelError, match="architecture bloom cannot be run exactly: "):
        probe_layers(transformers.AutoModelForCausalLM.from_config(config).eval(), config)
