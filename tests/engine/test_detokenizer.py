import pytest
from tiny_tokenizers import chatml_tokenizer

from infer.engine.detokenizer import detokenize
from infer.engine.stopping import Stop

BACKEND = chatml_tokenizer().backend_tokenizer


@pytest.mark.parametrize("text", ["你好,世界", "👩‍🚀🔥🇩🇪", "naïve café 🙂 ok", ""])
def test_text_whose_characters_are_spread_over_tokens_is_whole(text: str) -> None:
    token_ids = BACKEND.encode(text, add_special_tokens=False).ids
    assert detokenize(token_ids, Stop("length", None, len(token_ids)), BACKEND.decode) == text


def test_text_cut_inside_a_character_is_what_decoding_all_ids_gives() -> None:
    token_ids = BACKEND.encode("a🔥", add_special_tokens=False).ids[:-1]
    text = detokenize(token_ids, Stop("length", None, len(token_ids)), BACKEND.decode)
    assert text == BACKEND.decode(token_ids)
    assert text.startswith("a�")


def test_text_ends_before_the_stop_token() -> None:
    token_ids = BACKEND.encode("good.", add_special_tokens=False).ids
    stop = Stop("stop", token_ids[-1], len(token_ids) - 1)
    assert detokenize(token_ids, stop, BACKEND.decode) == BACKEND.decode(token_ids[:-1])


def test_text_ends_before_the_stop_string() -> None:
    token_ids = BACKEND.encode("it broke\n\nWould", add_special_tokens=False).ids
    assert detokenize(token_ids, Stop("stop", "\n\n", len(token_ids), 8), BACKEND.decode) == "it broke"


def test_text_holds_no_special_tokens() -> None:
    token_ids = [*BACKEND.encode("good", add_special_tokens=False).ids, BACKEND.token_to_id("<|im_start|>")]
    assert detokenize(token_ids, Stop("length", None, len(token_ids)), BACKEND.decode) == "good"
