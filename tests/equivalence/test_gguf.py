"""Greedy output of a GGUF file whose weights stay in their blocks is that of transformers with them as numbers."""

from __future__ import annotations

import gguf
import pytest
import torch
from greedy import generate_alone, generate_ours, make_prompts
from tiny_gguf import save_gguf
from transformers import AutoModelForCausalLM, GgufConfig

from infer.engine.config import EngineConfig
from infer.engine.dequant_modules import DequantEmbedding, DequantLinear
from infer.engine.engine import Engine

PROMPTS = make_prompts(lengths=(1, 16, 33, 7))
KINDS = gguf.GGMLQuantizationType
# Rows are whole blocks of 256.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 2}
K_QUANTS = {"attn_v": KINDS.Q6_K, "token_embd": KINDS.Q6_K}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("INFER_HOME", str(tmp_path / "home"))


def oracle(path):
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    return generate_alone(model, PROMPTS)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", {"quantization": KINDS.Q4_0}),
        ("llama", {"quantization": KINDS.Q4_1, "other_quantizations": {"token_embd": KINDS.Q8_0}}),
        ("qwen2", {"quantization": KINDS.Q8_0, "hidden_size": 128}),
        ("qwen3", {"quantization": KINDS.Q4_1, "head_dim": 128}),
        (
            "llama",
            {"quantization": KINDS.Q4_K, "other_quantizations": K_QUANTS, **WIDE},
        ),
        ("llama", {"quantization": KINDS.Q4_K, "other_quantizations": {"ffn_up": KINDS.Q5_0}, **WIDE}),
    ],
    ids=["Q4_0", "Q4_1", "Q8_0", "Q4_1-qwen3", "Q4_K_M", "Q4_K-with-others"],
)
def test_output_is_that_of_the_numbers(tmp_path, model_type, settings):
    path = tmp_path / "tiny.gguf"
    save_gguf(path, model_type, **settings)
    expected = oracle(path)
    assert len({tuple(tokens) for tokens in expected}) > 2
    for config in ({}, {"max_num_batched_tokens": 5}, {"attention_backend": "reference"}, {"fuse_kernels": False}):
        assert generate_ours(path, PROMPTS, **config) == expected, config
    assert generate_ours(path, PROMPTS, quantization="none") == expected


def test_weights_stay_in_their_blocks(tmp_path):
    path = tmp_path / "tiny.gguf"
    save_gguf(path, quantization=KINDS.Q4_0)
    kinds = {}
    for quantization in ("auto", "none"):
        engine = Engine(EngineConfig(model=str(path), quantization=quantization))
        kinds[quantization] = [type(module) for module in engine.network.model.modules()]
    assert kinds["auto"].count(DequantLinear) == 3 * 4 + 1
    assert kinds["auto"].count(DequantEmbedding) == 1
    assert DequantLinear not in kinds["none"]
