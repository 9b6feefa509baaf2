"""What of a GGUF file the conversion carries over, so that everything else can be refused by name.

transformers' GGUF loader passes over what it does not know: the frequency factors of Llama 3.1, a pre-tokenizer, a
bias. The model would then run, and answer a little wrongly. So a file may only hold what is listed here, and the values
that the loader derives are compared with the file's afterwards.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from infer.engine.errors import ModelError

if TYPE_CHECKING:
    from infer.engine.gguf_header import GgufHeader

CONFIG_KEYS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.dimension_count": "head_dim",
    "rope.freq_base": "rope_theta",
}
"""Keys below the architecture's name, and the attribute of the converted config that must have the same value."""

_LAYER = r"blk\.\d+\.(attn_norm|attn_q|attn_k|attn_v|attn_output|ffn_norm|ffn_gate|ffn_up|ffn_down)\.weight"
_TENSORS = rf"(token_embd|output_norm|output)\.weight|{_LAYER}"
_TENSORS_BY_ARCHITECTURE = {
    "llama": _TENSORS,
    "qwen2": rf"{_TENSORS}|blk\.\d+\.attn_[qkv]\.bias",
    "qwen3": rf"{_TENSORS}|blk\.\d+\.attn_[qk]_norm\.weight",
}

INDIVIDUAL_DIGITS = frozenset({"smollm"})
"""Byte-level vocabularies that split numbers into digits before GPT-2's split; the loader leaves that out."""
_PRE_TOKENIZERS = INDIVIDUAL_DIGITS | {"gpt-2", "qwen2"}
_SPECIAL_TOKENS = ("bos", "eos", "unknown", "padding")


def check_gguf(header: GgufHeader, source: str) -> None:
    """Refuse what the conversion would leave out.

    Raises:
        ModelError: names the key, tensor or tokenizer.
    """
    architecture = header.metadata.get("general.architecture")
    if architecture not in _TENSORS_BY_ARCHITECTURE:
        raise _refusal(source, f"has the architecture {architecture!r}; {', '.join(_TENSORS_BY_ARCHITECTURE)} convert")
    if header.metadata.get("split.count", 1) != 1:
        raise ModelError(
            f"{source} is one of {header.metadata['split.count']} parts of a model",
            hint="join them with `llama-gguf-split --merge` and pass the result",
        )
    for key in (*header.metadata, *header.array_lengths):
        prefix, _, name = key.partition(".")
        if prefix == architecture and not _is_carried(header, key, name):
            raise _refusal(source, f"sets {key!r}, which conversion would leave out: {_shown(header, key)}")
    for tensor in header.tensors:
        if not re.fullmatch(_TENSORS_BY_ARCHITECTURE[architecture], tensor.name):
            raise _refusal(source, f"holds the tensor {tensor.name!r}, which conversion would leave out")
    num_layers = header.metadata.get(f"{architecture}.block_count", 0)
    if isinstance(num_layers, int) and num_layers > len(header.tensors):
        raise ModelError(f"{source} says that it has {num_layers:,} layers, and holds {len(header.tensors):,} tensors")
    _check_tokenizer(header, source)


def check_converted(header: GgufHeader, config: Any, source: str) -> None:
    """Hold transformers' config against the file it was derived from.

    Raises:
        ModelError: names the value that differs.
    """
    for name, attribute in CONFIG_KEYS.items():
        stated = header.metadata.get(f"{header.metadata['general.architecture']}.{name}")
        derived = _derived(config, attribute)
        if isinstance(stated, int | float) and not math.isclose(stated, derived, rel_tol=1e-6):
            raise _refusal(source, f"says {name} {stated}, of which conversion made {attribute} {derived}")


def _derived(config: Any, attribute: str) -> float:
    if attribute == "rope_theta":
        return float(config.rope_parameters["rope_theta"])
    if attribute == "head_dim":
        return float(getattr(config, "head_dim", None) or config.hidden_size / config.num_attention_heads)
    return float(getattr(config, attribute))


def _is_carried(header: GgufHeader, key: str, name: str) -> bool:
    if name == "rope.scaling.type":
        return header.metadata.get(key) == "none"
    return name in CONFIG_KEYS and key in header.metadata


def _shown(header: GgufHeader, key: str) -> str:
    return repr(header.metadata[key]) if key in header.metadata else f"{header.array_lengths[key]} values"


def _check_tokenizer(header: GgufHeader, source: str) -> None:
    model = header.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        pre_tokenizer = header.metadata.get("tokenizer.ggml.pre")
        if pre_tokenizer not in _PRE_TOKENIZERS:
            known = ", ".join(sorted(_PRE_TOKENIZERS))
            raise _refusal(source, f"splits text by the pre-tokenizer {pre_tokenizer!r}; {known} convert")
    elif model == "llama":
        if header.metadata.get("tokenizer.ggml.add_space_prefix", True) is not True:
            raise _refusal(source, "has a sentencepiece vocabulary without a space prefix, which does not convert")
    else:
        raise _refusal(source, f"has a tokenizer of the kind {model!r}; gpt2 and llama convert")
    num_tokens = header.array_lengths.get("tokenizer.ggml.tokens", 0)
    for token in _SPECIAL_TOKENS:
        token_id = header.metadata.get(f"tokenizer.ggml.{token}_token_id", 0)
        if not isinstance(token_id, int) or not 0 <= token_id < num_tokens:
            raise _refusal(source, f"has the {token} token {token_id!r} in a vocabulary of {num_tokens}")


def _refusal(source: str, found: str) -> ModelError:
    return ModelError(f"{source} {found}", hint="pass the model's safetensors checkpoint instead")
