"""Small tokenizers of the kinds that models come with, each with a chat template in the manner of a model family."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The kettle boils fast, it looks good, and it broke after two weeks. Would I buy it again? No!",
    "system user assistant model tool Obey the rules and answer in one word: positive or negative",
    "你好,世界。今天天气很好。 Grüße aus Köln! ¿Qué tal? naïve café",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))",
    "0 1 2 3 4 5 6 7 8 9 [ ] < > | / _ { } ( ) = + - * & % $ # @ ~ ^ ` ' \" \\ ; : im start end of turn INST think",
]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = (
    "{% set ns = namespace(first=true) %}{% for message in messages %}"
    "{% set turn = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim"
    " + '<|eot_id|>' %}"
    "{% if loop.first %}{% set turn = bos_token + turn %}{% endif %}{{ turn }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


def chatml_tokenizer(chat_template: str | None = CHATML) -> Any:
    """Byte-level BPE that adds no BOS; `<think>` and runs of spaces are added tokens that are not special."""
    backend = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backend.add_tokens(
        [AddedToken(content, normalized=False) for content in ("<think>", "</think>", "    ", "<|fim_pad|>")]
    )
    return _wrap(backend, chat_template, eos_token="<|im_end|>")


def llama3_tokenizer(chat_template: str | None = LLAMA3) -> Any:
    """Byte-level BPE whose control tokens come after its vocabulary; BOS by the post-processor."""
    backend = _byte_level([])
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    _add_bos(backend, "<|begin_of_text|>")
    return _wrap(backend, chat_template, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")


def mistral_tokenizer(chat_template: str | None = MISTRAL) -> Any:
    """BPE over words that begin with `▁`, also the first word of a text, with unknown characters; adds BOS."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=True)
    _train(backend, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    _add_bos(backend, "<s>")
    return _wrap(backend, chat_template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gemma_tokenizer(chat_template: str | None = GEMMA) -> Any:
    """BPE over text whose spaces a normalizer rewrites; runs of line ends are added tokens; adds BOS."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("▁"), "merged_with_next")
    backend.decoder = decoders.Replace("▁", " ")
    _train(backend, ["<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"])
    backend.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("<table>", normalized=False)])
    _add_bos(backend, "<bos>")
    return _wrap(backend, chat_template, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>")


def unigram_tokenizer() -> Any:
    """Its vocabulary holds `</s>` as a piece, which the model finds in plain text."""
    letters = [(character, -5.0) for character in sorted({*"".join(CORPUS), "▁"})]
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *letters], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("<unk>", normalized=False), AddedToken("</s>", normalized=False)])
    return _wrap(backend, None, eos_token="</s>", unk_token="<unk>")


def _byte_level(special_tokens: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    _train(backend, special_tokens, pre_tokenizers.ByteLevel.alphabet())
    return backend


def _train(backend: Tokenizer, special_tokens: list[str], alphabet: list[str] | None = None) -> None:
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=420, special_tokens=special_tokens, initial_alphabet=alphabet or [], show_progress=False
        ),
    )


def _add_bos(backend: Tokenizer, token: str) -> None:
    backend.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, backend.token_to_id(token))]
    )


def _wrap(backend: Tokenizer, chat_template: str | None, **special_tokens: str) -> Any:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens)
    tokenizer.chat_template = chat_template
    return tokenizer


FAMILIES = {
    "chatml": chatml_tokenizer,
    "llama3": llama3_tokenizer,
    "mistral": mistral_tokenizer,
    "gemma": gemma_tokenizer,
}


def special_ids(tokenizer: Any) -> set[int]:
    """The ids of all special tokens, also of those without a name of their own such as `bos_token`; unknown is none."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return {token_id for token_id, token in added.items() if token.special} - {tokenizer.unk_token_id}
