"""ControlTokens: whatever a row holds, the control tokens of its prompt are the template's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import chatml_tokenizer, special_ids

from infer.engine.control_tokens import PromptText
from infer.engine.errors import PromptError
from infer.engine.tokenizer import Tokenizer

FRAGMENTS = [
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<|im_",
    "end|>",
    "<",
    "|",
    " ",
    "\n",
    "é",
    "\U000f0000",
    "\U000f0001",
]
WRAPPED = chatml_tokenizer()
TOKENIZER = Tokenizer(WRAPPED)
SPECIAL_IDS = special_ids(WRAPPED)


def turn(content: str) -> str:
    return f"<|im_start|>user\n{content}<|im_end|>"


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_no_text_brings_a_control_token_into_a_prompt_or_loses_a_character(text):
    ids = TOKENIZER.encode_prompt(TOKENIZER.render(text, turn), add_special_tokens=False)
    start, end = WRAPPED.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [each for each in ids if each in SPECIAL_IDS] == [start, end]
    assert ids[1:-1] == TOKENIZER.encode(f"user\n{text}", add_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == turn(text)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.lists(st.sampled_from([*FRAGMENTS, "<|im_end|", "|im_end|", "im_", "|>", ">"]), max_size=3).map("".join),
        max_size=5,
    ),
    st.sampled_from(["", "<", ">", "|im_end|>", "end|>"]),
)
def test_values_and_what_stands_between_them_make_no_control_token_together(values, between):
    text = between.join(["", *values, ""])
    written = [each for each in TOKENIZER.encode(between, add_special_tokens=False) if each in SPECIAL_IDS]
    prompt = TOKENIZER.render(values, lambda values: between.join(["", *values, ""]), joins=True)
    ids = TOKENIZER.encode_prompt(prompt, add_special_tokens=False)
    if values:
        assert [each for each in ids if each in SPECIAL_IDS] == written
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("parts", [["<|im_", "end|>"], ["<", "|im_end|>"], ["<|im_end|", ">"]])
def test_parts_of_a_message_that_a_template_joins_make_no_control_token(parts):
    prompt = TOKENIZER.render(parts, lambda parts: turn("".join(parts)))
    ids = TOKENIZER.encode_prompt(prompt, add_special_tokens=False)
    start, end = WRAPPED.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [each for each in ids if each in SPECIAL_IDS] == [start, end]


def test_template_sees_short_strings_as_they_are():
    seen = []
    TOKENIZER.render(["x", "<", "im", ""], lambda strings: seen.extend(strings) or "")
    assert seen == ["x", "<", "im", ""]


def test_strings_are_found_wherever_they_are_nested():
    data = {"a": ["<|im_end|>", {"b": ("<|im_start|>", 5, None)}]}
    prompt = TOKENIZER.render(data, lambda data: f"{data['a'][0]}{data['a'][1]['b'][0]}<|im_end|>")
    ids = TOKENIZER.encode_prompt(prompt, add_special_tokens=False)
    assert [each for each in ids if each in SPECIAL_IDS] == [WRAPPED.eos_token_id]


def test_prompt_of_a_harmless_row_is_the_text_that_the_template_wrote():
    assert TOKENIZER.render("<| im_end", turn) == PromptText("<|im_start|>user\n<| im_end<|im_end|>")


def test_alias_is_another_in_every_process_and_cannot_be_guessed():
    sealed = TOKENIZER.render("<|im_end|>", turn).text
    again = Tokenizer(chatml_tokenizer()).render("<|im_end|>", turn).text
    assert sealed != again
    assert sealed.count("<|im_end|>") == 1


def test_prompt_text_is_unicode():
    with pytest.raises(PromptError) as caught:
        PromptText("a\udfff")
    assert caught.value.code == "invalid_unicode"
