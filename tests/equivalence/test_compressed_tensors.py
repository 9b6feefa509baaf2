"""Greedy output of compressed-tensors checkpoints: of W8A16 it is that of the numbers that the weights stand for."""

from __future__ import annotations

import pytest
from greedy import generate_alone, generate_ours, make_prompts
from tiny_compressed import DYNAMIC_TOKENS, quantization_config, save_compressed
from tiny_models import make_model

from infer.engine.config import EngineConfig
from infer.engine.dequant_modules import DequantLinear
from infer.engine.engine import Engine
from infer.engine.quantized_layer import QuantizedDecoderLayer
from infer.engine.quantized_linear import QuantizedLinear

PROMPTS = make_prompts(lengths=(1, 16, 33, 7))


def oracle(numbers, model_type):
    model = make_model(model_type)
    model.load_state_dict(numbers, strict=False)
    return generate_alone(model, PROMPTS)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma2"])
@pytest.mark.parametrize(
    ("form", "strategy", "group_size"),
    [
        ("pack-quantized", "channel", None),
        ("pack-quantized", "group", 16),
        ("int-quantized", "tensor", None),
        ("int-quantized", "group", 32),
    ],
)
def test_output_of_w8a16_is_that_of_the_numbers(tmp_path, model_type, form, strategy, group_size):
    numbers = save_compressed(tmp_path, quantization_config(form, strategy, group_size=group_size), model_type)
    expected = oracle(numbers, model_type)
    for config in ({}, {"max_num_batched_tokens": 5}, {"quantization": "none"}, {"fuse_kernels": False}):
        assert generate_ours(tmp_path, PROMPTS, **config) == expected, config


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_output_of_w8a8_does_not_depend_on_how_it_is_scheduled(tmp_path, strategy):
    save_compressed(tmp_path, quantization_config("int-quantized", strategy, tokens=DYNAMIC_TOKENS))
    expected = generate_ours(tmp_path, PROMPTS)
    for config in ({"max_num_batched_tokens": 5}, {"max_num_seqs": 1}, {"attention_backend": "reference"}):
        assert generate_ours(tmp_path, PROMPTS, **config) == expected, config


def test_output_of_w8a8_without_its_activations_is_that_of_the_numbers(tmp_path):
    numbers = save_compressed(tmp_path, quantization_config("int-quantized", "channel", tokens=DYNAMIC_TOKENS))
    assert generate_ours(tmp_path, PROMPTS, quantization="none") == oracle(numbers, "llama")


def test_layers_stay_in_int8(tmp_path):
    kinds = {}
    for name, tokens in (("w8a16", None), ("w8a8", DYNAMIC_TOKENS)):
        save_compressed(tmp_path / name, quantization_config("int-quantized", "channel", tokens=tokens))
        model = Engine(EngineConfig(model=str(tmp_path / name))).network.model
        kinds[name] = [type(module) for module in model.modules()]
    assert kinds["w8a16"].count(DequantLinear) == 3 * 4
    assert kinds["w8a8"].count(QuantizedLinear) == 3 * 4
    assert kinds["w8a8"].count(QuantizedDecoderLayer) == 3
