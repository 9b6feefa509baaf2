from __future__ import annotations

import pytest
from tiny_tokenizers import FAMILIES

from infer.cli.synthetic_text import SyntheticText


def count_words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 50, 333])
def test_text_has_as_many_tokens_as_asked_for(num_tokens):
    text = SyntheticText(count_words, 0).make(num_tokens)
    assert count_words(text) == num_tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_length_is_close_with_any_tokenizer(family):
    encode = FAMILIES[family]().backend_tokenizer.encode
    text = SyntheticText(lambda text: len(encode(text, add_special_tokens=False).ids), 0).make(400)
    assert len(encode(text, add_special_tokens=False).ids) == pytest.approx(400, rel=0.05)


def test_same_seed_gives_the_same_texts_and_each_is_another():
    first, second = SyntheticText(count_words, 3), SyntheticText(count_words, 3)
    texts = [first.make(40) for _ in range(20)]
    assert texts == [second.make(40) for _ in range(20)]
    assert len(set(texts)) == 20
    assert SyntheticText(count_words, 4).make(40) != texts[0]


def test_word_that_no_tokenizer_makes_tokens_of_does_not_hang():
    assert SyntheticText(lambda text: 0, 0).make(0) != ""
