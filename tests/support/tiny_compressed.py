"""Tiny models as compressed-tensors checkpoints, written by hand in the way of llm-compressor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_model

if TYPE_CHECKING:
    from pathlib import Path

DYNAMIC_TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def quantization_config(
    form: str, strategy: str, *, group_size: int | None = None, tokens: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy, "group_size": group_size}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": tokens, "output_activations": None}
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }
    return config | changes


def save_compressed(
    folder: Path, config: dict[str, Any], model_type: str = "llama", **overrides: Any
) -> dict[str, torch.Tensor]:
    """Write a model whose linear layers, but the last, are quantised as `config` says. Returns the numbers that its
    weights stand for."""
    save_model(folder, model_type, **overrides)
    weights = config["config_groups"]["group_0"]["weights"]
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = numbers[name] = tensor
            continue
        rows, columns = tensor.shape
        groups = {"tensor": tensor.view(1, 1, -1), "channel": tensor.view(rows, 1, columns)}
        groups["group"] = tensor.view(rows, -1, weights["group_size"] or columns)
        chosen = groups[weights["strategy"]]
        scale = chosen.abs().amax(-1, keepdim=True) / 127
        elements = (chosen / scale).round().to(torch.int8)
        numbers[name] = (elements * scale).view(rows, columns)
        elements = elements.view(rows, columns)
        tensors[f"{name}_scale"] = scale.view(-1) if weights["strategy"] == "tensor" else scale.flatten(1)
        if config["format"] == "pack-quantized":
            padded = torch.nn.functional.pad((elements.int() + 128).to(torch.uint8), (0, -columns % 4))
            tensors[f"{name}_packed"] = padded.view(torch.int32)
            tensors[f"{name}_shape"] = torch.tensor([rows, columns])
        else:
            tensors[name] = elements
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"quantization_config": config}))
    return numbers
