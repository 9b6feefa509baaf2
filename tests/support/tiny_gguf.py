"""Tiny random models written as GGUF files, in the way of llama.cpp's converter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from tiny_models import CHAT_TEMPLATE, make_model, make_tokenizer
from weight_blocks import random_blocks

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def save_gguf(
    path: Path,
    model_type: str = "llama",
    *,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray[Any, Any]] | None = None,
    without: str = "",
    quantization: gguf.GGMLQuantizationType | None = None,
    other_quantizations: dict[str, gguf.GGMLQuantizationType] | None = None,
    **overrides: Any,
) -> Any:
    """Write a model and return it. `keys` and `tensors` are added or replaced, the tensor `without` is left out.

    Matrices are quantised where a quantisation is given, those whose names hold a key of `other_quantizations` in
    another way, else everything is in float32. What the library cannot quantise has other weights than the model.
    """
    tokenizer = make_tokenizer()
    model = make_model(model_type, tie_word_embeddings=True, vocab_size=len(tokenizer), **overrides)
    writer = gguf.GGUFWriter(path, model_type)
    for key, value in (_config_keys(model.config) | _tokenizer_keys(tokenizer) | (keys or {})).items():
        _add_key(writer, key, value)
    named = {_gguf_name(name): _values(name, p.detach().numpy(), model.config) for name, p in model.named_parameters()}
    for name, values in (named | (tensors or {})).items():
        if name == without:
            continue
        if quantization is not None and values.ndim > 1:
            kinds = [kind for part, kind in (other_quantizations or {}).items() if part in name]
            kind = (kinds or [quantization])[0]
            writer.add_tensor(name, _blocks(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _blocks(values: np.ndarray[Any, Any], kind: gguf.GGMLQuantizationType) -> np.ndarray[Any, Any]:
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        # Of these types the numbers are some hundred times the scales.
        return random_blocks(kind.name, *values.shape, scale=1e-4)


def _config_keys(config: Any) -> dict[str, Any]:
    keys = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    if config.model_type == "llama":
        keys["rope.dimension_count"] = config.head_dim
    if config.model_type == "qwen3":
        keys["attention.key_length"] = keys["attention.value_length"] = config.head_dim
    return {f"{config.model_type}.{name}": value for name, value in keys.items()}


def _tokenizer_keys(tokenizer: Any) -> dict[str, Any]:
    backend = tokenizer.backend_tokenizer
    control = backend.get_added_tokens_decoder()
    ids = range(len(tokenizer))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [backend.id_to_token(i) for i in ids],
        "tokenizer.ggml.token_type": [3 if i in control else 1 for i in ids],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
        writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])


def _gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in _NAMES:
        return f"{_NAMES[module]}.{kind}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{_NAMES[inner]}.{kind}"


def _values(name: str, values: np.ndarray[Any, Any], config: Any) -> np.ndarray[Any, Any]:
    """Llama's queries and keys have the two halves of a rotary pair side by side in the file."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if config.model_type != "llama" or heads is None:
        return values
    rows, columns = values.shape
    halves = values.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
