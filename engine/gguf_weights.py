"""The tensors of a GGUF file under transformers' names: quantised matrices as they lie, everything else as numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from infer.engine.errors import ModelError
from infer.kernels.gguf_blocks import PACKED_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infer.engine.gguf_header import GgufHeader, GgufTensor

_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufWeights(NamedTuple):
    """Of a whole file."""

    tensors: dict[str, torch.Tensor]
    block_types: dict[str, str]
    """ggml's type of each layer whose weight is rows of blocks: uint8 `[rows, bytes of a row]`."""


def read_gguf_weights(
    path: Path, header: GgufHeader, config: Any, expected: Mapping[str, torch.Size], dtype: torch.dtype
) -> GgufWeights:
    """Read every tensor of a file that `check_gguf` let pass.

    Args:
        config: transformers' config of it
        expected: the names and shapes that its architecture has
        dtype: of matrices that do not stay as they are

    Raises:
        ModelError: a tensor is missing, or of another shape.
    """
    tensors: dict[str, torch.Tensor] = {}
    block_types: dict[str, str] = {}
    data = np.memmap(path, np.uint8, mode="r")
    for tensor in header.tensors:
        name = _name(tensor.name)
        shape = tensor.shape[::-1]
        if name not in expected:
            raise ModelError(f"{path} holds a tensor that its architecture does not have: {tensor.name}")
        if shape != tuple(expected[name]):
            raise ModelError(f"{path} has {tensor.name} of the shape {shape}, not {tuple(expected[name])}")
        rows = _permuted(name, _rows(data, tensor), config)
        if tensor.type_name in PACKED_TYPES and len(shape) == 2:
            tensors[name] = rows.contiguous()
            block_types[name.removesuffix(".weight")] = tensor.type_name
        else:
            numbers = _numbers(rows, tensor.type_name).view(shape)
            # Norms and biases cost nothing in the type that they are in.
            tensors[name] = numbers.to(dtype) if len(shape) > 1 or dtype is torch.float16 else numbers
    if missing := sorted(expected.keys() - tensors.keys()):
        raise ModelError(f"{path} lacks {len(missing)} tensors of its architecture: {', '.join(missing[:3])}")
    return GgufWeights(tensors, block_types)


def _name(gguf_name: str) -> str:
    base, _, kind = gguf_name.rpartition(".")
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)", base):
        return f"model.layers.{int(match[1])}.{_LAYER_NAMES[match[2]]}.{kind}"
    return f"{_NAMES[base]}.{kind}"


def _rows(data: np.memmap[Any, Any], tensor: GgufTensor) -> torch.Tensor:
    """uint8 `[rows, bytes of a row]`, a copy."""
    num_rows = tensor.shape[1] if len(tensor.shape) > 1 else 1
    return torch.from_numpy(data[tensor.offset : tensor.offset + tensor.num_bytes].copy()).view(num_rows, -1)


def _permuted(name: str, rows: torch.Tensor, config: Any) -> torch.Tensor:
    """Llama's files have the two halves of a rotary pair of a head's rows side by side, its networks in two halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if config.model_type != "llama" or heads is None:
        return rows
    return rows.view(heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _numbers(rows: torch.Tensor, type_name: str) -> torch.Tensor:
    """float32"""
    import gguf

    return torch.from_numpy(gguf.quants.dequantize(rows.numpy(), gguf.GGMLQuantizationType[type_name]))
