"""What of compressed-tensors is run, and that everything else is refused by name."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_compressed import DYNAMIC_TOKENS, quantization_config, save_compressed

from infer.engine.compressed_tensors import Int8Scheme, read_compressed_tensors
from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.errors import ModelError

W8A16 = quantization_config("pack-quantized", "group", group_size=16)
W8A8 = quantization_config("int-quantized", "channel", tokens=DYNAMIC_TOKENS)


def changed(config, part, **values):
    config = deepcopy(config)
    config["config_groups"]["group_0"][part].update(values)
    return config


@pytest.mark.parametrize(
    ("config", "scheme", "text"),
    [
        (W8A8, Int8Scheme(False, "channel", 1, True), "W8A8 by channel"),
        (W8A16, Int8Scheme(True, "group", 16, False), "W8A16 in groups of 16"),
        # Older ones, whose weights are compressed as well.
        (W8A8 | {"quantization_status": "frozen"}, Int8Scheme(False, "channel", 1, True), "W8A8 by channel"),
        (changed(W8A16, "weights", strategy=None), Int8Scheme(True, "group", 16, False), "W8A16 in groups of 16"),
        (quantization_config("int-quantized", "tensor"), Int8Scheme(False, "tensor", 1, False), "W8A16 by tensor"),
    ],
)
def test_scheme_is_read(config, scheme, text):
    assert read_compressed_tensors(config, "here") == scheme
    assert scheme.describe() == text


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (changed(W8A16, "weights", num_bits=4), "weights of 4 bits of the type int"),
        (changed(W8A8, "weights", type="float"), "weights of 8 bits of the type float"),
        (changed(W8A16, "weights", symmetric=False), "asymmetric weights"),
        (changed(W8A16, "weights", strategy="block"), "weights scaled by block"),
        (changed(W8A16, "weights", group_size=0), "groups of the size 0"),
        (changed(W8A16, "weights", actorder="group"), "columns ordered by activations: group"),
        (changed(W8A8, "input_activations", dynamic=False), "static scales of activations"),
        (changed(W8A8, "input_activations", strategy="tensor"), "activations scaled by tensor"),
        (changed(W8A8, "input_activations", symmetric=False), "asymmetric activations"),
        (changed(W8A8, "input_activations", type="float"), "activations of 8 bits of the type float"),
        (
            quantization_config("int-quantized", "group", group_size=16, tokens=DYNAMIC_TOKENS),
            "int8 activations with weights scaled by groups of 16",
        ),
        (W8A8 | {"format": "float-quantized"}, "weights in the format float-quantized"),
        (W8A8 | {"kv_cache_scheme": {"num_bits": 8}}, "a kv_cache_scheme: {'num_bits': 8}"),
        (
            W8A8 | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparse weights: {'format': 'sparse-24-bitmask'}",
        ),
        (W8A8 | {"config_groups": {}}, "no config_groups: {}"),
        (
            W8A8 | {"config_groups": W8A8["config_groups"] | {"b": W8A16["config_groups"]["group_0"]}},
            "several schemes: W8A16 in groups of 16; W8A8 by channel",
        ),
    ],
)
def test_other_schemes_are_refused_by_name(config, found):
    with pytest.raises(ModelError) as caught:
        read_compressed_tensors(config, "here")
    assert str(caught.value) == f"here is quantised by compressed-tensors in a way that is not run, with {found}"
    assert caught.value.hint


LAYER = "model.layers.1.mlp.up_proj"
INFINITE, NARROW = torch.full((64, 1), torch.inf), torch.tensor([64, 31])


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (W8A8, {"weight": None}, f"the checkpoint lacks a tensor of a quantised layer: {LAYER}.weight"),
        (W8A8, {"weight_scale": None}, f"the checkpoint lacks a tensor of a quantised layer: {LAYER}.weight_scale"),
        (
            W8A8,
            {"weight_scale": torch.ones(32, 1)},
            f"{LAYER}.weight_scale is F32 [32, 1], where its layer asks for BF16 or F16 or F32 [64] or [64, 1]",
        ),
        (
            W8A8,
            {"weight": torch.ones(64, 32)},
            f"{LAYER}.weight is F32 [64, 32], where its layer asks for I8 [64, 32]",
        ),
        (
            W8A8,
            {"weight_scale": INFINITE},
            f"{LAYER} is damaged: a scale is infinite or no number",
        ),
        (
            W8A8,
            {"weight_zero_point": torch.ones(64, 1, dtype=torch.int8)},
            f"{LAYER} is damaged: a symmetric weight has a zero point",
        ),
        (
            W8A16,
            {"weight_packed": torch.zeros(64, 7, dtype=torch.int32)},
            f"{LAYER}.weight_packed is I32 [64, 7], where its layer asks for I32 [64, 8]",
        ),
        (
            W8A16,
            {"weight_shape": NARROW},
            f"{LAYER} is damaged: weight_shape is [64, 31], not [64, 32]",
        ),
        (
            W8A16,
            {"weight_g_idx": torch.zeros(32, dtype=torch.int32)},
            f"{LAYER} has its columns in another order, which is not run: weight_g_idx",
        ),
    ],
)
def test_damaged_layer_is_refused(tmp_path, config, changes, message):
    save_compressed(tmp_path, config)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(f"{LAYER}.{name}", None)
        if tensor is not None:
            tensors[f"{LAYER}.{name}"] = tensor
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError) as caught:
        Engine(EngineConfig(model=str(tmp_path)))
    assert str(caught.value) == message


def test_zero_point_of_zeros_is_taken(tmp_path):
    save_compressed(tmp_path, W8A8)
    tensors = load_file(tmp_path / "model.safetensors")
    zeros = {f"{LAYER}.weight_zero_point": torch.zeros(64, 1, dtype=torch.int8)}
    save_file(tensors | zeros, tmp_path / "model.safetensors", metadata={"format": "pt"})
    Engine(EngineConfig(model=str(tmp_path)))


def test_quantised_layer_that_the_architecture_does_not_have_is_refused(tmp_path):
    save_compressed(tmp_path, W8A8)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, message in (
        ("model.norm.weight_scale", "model.norm is quantised, and is no linear layer but a LlamaRMSNorm"),
        (
            "model.layers.1.mlp.experts.0.weight_scale",
            "a layer is quantised that its architecture does not have: 'model.layers.1.mlp.experts.0'",
        ),
    ):
        save_file(tensors | {name: torch.ones(32, 1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError) as caught:
            Engine(EngineConfig(model=str(tmp_path)))
        assert str(caught.value) == message


def test_types_of_blocks_that_are_not_known_are_refused(tmp_path):
    save_compressed(tmp_path, W8A8)
    config = json.loads((tmp_path / "config.json").read_text())
    for types in ({"a": "Q9_9"}, {"a": ["Q4_0"]}, {}, "Q4_0"):
        config["quantization_config"] = {"quant_method": "gguf", "types": types}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match="has no types of blocks for its layers, or some that are not known"):
            Engine(EngineConfig(model=str(tmp_path)))
