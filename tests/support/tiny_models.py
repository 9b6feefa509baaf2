"""Tiny random models of every supported architecture, and a tokenizer trained on a few sentences."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from pathlib import Path

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "A review of a kettle: it boils fast, it looks good, and it broke after two weeks.",
    "你好,世界。今天天气很好。 Grüße aus Köln! ¿Qué tal? 🙂🚀 naïve café",
    "def add(a, b):\n    return a + b\n",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 100 1,000 3.14",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_SIZE = 384

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
_MOE: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 24},
    "gemma2": {"sliding_window": 24, "query_pre_attn_scalar": 16, "tie_word_embeddings": False},
    "gemma3_text": {"sliding_window": 24, "query_pre_attn_scalar": 16, "num_hidden_layers": 6},
    "phi3": {"sliding_window": 24},
    "olmo2": {},
    "gpt_neox": {"rotary_pct": 0.25},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 64, "tie_word_embeddings": False},
    "mixtral": {"num_local_experts": 4, **_MOE},
    "qwen3_moe": {"num_experts": 4, "decoder_sparse_step": 1, "norm_topk_prob": True, **_MOE},
}


def make_config(model_type: str, **overrides: Any) -> Any:
    settings = _COMMON | ARCHITECTURES[model_type] | overrides
    if model_type == "gpt2":
        settings = {k: v for k, v in settings.items() if k not in ("hidden_size", "head_dim", "num_key_value_heads")}
    return transformers.CONFIG_MAPPING[model_type](**settings)


def make_model(model_type: str, *, seed: int = 0, **overrides: Any) -> Any:
    """A float32 model with random weights, large enough for its tokens to differ, on transformers' own attention."""
    torch.manual_seed(seed)
    config = make_config(model_type, **overrides)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


def make_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """Byte-level BPE, at most VOCAB_SIZE tokens, with ChatML's control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    control_tokens = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=control_tokens, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
    )
    fast.chat_template = chat_template
    return fast


def save_model(folder: Path, model_type: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a model directory as `save_pretrained` does: safetensors, config, tokenizer."""
    make_model(model_type, seed=seed, **overrides).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    generation_config = {"eos_token_id": [1], "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return folder
