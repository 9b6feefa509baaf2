import random
from collections.abc import Sequence
from typing import Any

import pytest
from tiny_tokenizers import chatml_tokenizer, gemma_tokenizer, mistral_tokenizer

from infer.engine.detokenizer import detokenize
from infer.engine.sampling_params import SamplingParams
from infer.engine.stopping import Stop, StopChecker

CHARACTERS = [*map(chr, range(32, 127))]


def decode_characters(token_ids: Sequence[int]) -> str:
    """Token i is the i-th printable character, except a few: 0 is special, 100 and up are longer."""
    longer = {0: "", 100: "DEF", 101: "abc", 102: "E" + "-" * 20}
    return "".join(longer[each] if each in longer else CHARACTERS[each] for each in token_ids)


def ids_of(text: str) -> list[int]:
    return [CHARACTERS.index(character) for character in text]


def checker(params: SamplingParams, decode: Any = decode_characters, **limits: int) -> StopChecker:
    max_tokens = limits.get("max_tokens", params.max_tokens)
    return StopChecker(params, max_tokens=max_tokens, eos_token_ids={90, 91}, decode=decode)


def run(params: SamplingParams, token_ids: Sequence[int], decode: Any = decode_characters) -> tuple[Stop | None, str]:
    """Feeds token by token; the stop and the text, which is whole where nothing stopped."""
    check = checker(params, decode).check
    for num_tokens in range(1, len(token_ids) + 1):
        stop = check(token_ids[:num_tokens])
        if stop is not None:
            return stop, detokenize(token_ids[:num_tokens], stop, decode)
    return None, decode(token_ids)


@pytest.mark.parametrize("eos", [90, 91])
def test_each_eos_stops_and_is_not_text(eos: int) -> None:
    assert run(SamplingParams(), [*ids_of("ab"), eos, *ids_of("c")]) == (Stop("stop", None, 2), "ab")


def test_ignored_eos_is_like_any_token() -> None:
    params = SamplingParams(ignore_eos=True, max_tokens=3)
    assert run(params, [33, 90, 34, 35]) == (Stop("length", None, 3), decode_characters([33, 90, 34]))


def test_ignored_eos_that_is_a_stop_id_stops() -> None:
    params = SamplingParams(ignore_eos=True, stop_token_ids=(90,))
    assert run(params, [33, 91, 90]) == (Stop("stop", 90, 2), decode_characters([33, 91]))


def test_stop_token_id_stops_and_is_not_text() -> None:
    params = SamplingParams(stop_token_ids=(34, 35))
    assert run(params, [33, 35, 34]) == (Stop("stop", 35, 1), decode_characters([33]))


def test_max_tokens_ends_with_length() -> None:
    assert run(SamplingParams(max_tokens=2), ids_of("abc")) == (Stop("length", None, 2), "ab")


@pytest.mark.parametrize("num_tokens", [1, 10])
def test_what_the_model_allows_ends_with_length(num_tokens: int) -> None:
    check = checker(SamplingParams(max_tokens=20), max_tokens=num_tokens).check
    stops = [check([40] * length) for length in range(1, num_tokens + 1)]
    assert stops == [None] * (num_tokens - 1) + [Stop("length", None, num_tokens)]


def test_stop_at_the_last_token_beats_the_limit() -> None:
    assert run(SamplingParams(max_tokens=2), [33, 90]) == (Stop("stop", None, 1), decode_characters([33]))
    assert run(SamplingParams(max_tokens=2, stop=("b",)), ids_of("ab")) == (Stop("stop", "b", 2, 1), "a")


def test_stop_string_within_one_token_cuts_the_text_before_it() -> None:
    assert run(SamplingParams(stop=("DE",)), [*ids_of("ab"), 100, *ids_of("c")]) == (Stop("stop", "DE", 3, 2), "ab")


@pytest.mark.parametrize(
    "split", [["DEFGHIJ"], ["DEF", "GHIJ"], ["D", "E", "F", "G", "H", "I", "J"], ["DE", "FG", "HIJ"]]
)
def test_stop_string_over_many_tokens_leaves_none_of_it(split: list[str]) -> None:
    pieces = ["ab", *split, "cd"]
    stop, text = run(SamplingParams(stop=("DEFGHIJ",)), range(len(pieces)), lambda ids: "".join(pieces[i] for i in ids))
    assert (stop, text) == (Stop("stop", "DEFGHIJ", 1 + len(split), 2), "ab")


def test_stop_string_is_found_although_it_began_twice() -> None:
    assert run(SamplingParams(stop=("aab",)), ids_of("xaaab")) == (Stop("stop", "aab", 5, 2), "xa")


def test_stop_string_that_is_complete_first_counts() -> None:
    # The same whether "abc" comes as one token or as three.
    params = SamplingParams(stop=("abc", "b"))
    assert run(params, [*ids_of("x"), 101]) == (Stop("stop", "b", 2, 2), "xa")
    assert run(params, ids_of("xabc")) == (Stop("stop", "b", 3, 2), "xa")
    assert run(SamplingParams(stop=("bc", "abc")), [101]) == (Stop("stop", "abc", 1, 0), "")


def test_stop_string_across_tokens_without_text_is_found() -> None:
    for last in (*ids_of("E"), 102):
        token_ids = [*ids_of("xD"), *[0] * 200, last]
        assert run(SamplingParams(stop=("DE",)), token_ids) == (Stop("stop", "DE", 203, 1), "x")


def test_min_tokens_exempt_the_first_tokens_from_every_stop() -> None:
    params = SamplingParams(min_tokens=3, stop=("b",), stop_token_ids=(34,))
    assert run(params, [90, 34, *ids_of("b"), 33, 91]) == (Stop("stop", None, 4), decode_characters([90, 34, 66, 33]))


def test_min_tokens_exempt_a_stop_string_that_is_complete_within_them() -> None:
    params = SamplingParams(min_tokens=2, stop=("ab",))
    assert run(params, ids_of("abcabd")) == (Stop("stop", "ab", 5, 3), "abc")


def test_min_tokens_do_not_exempt_a_stop_string_that_is_complete_after_them() -> None:
    assert run(SamplingParams(min_tokens=2, stop=("abc",)), ids_of("abcd")) == (Stop("stop", "abc", 3, 0), "")
    # The first DE is within the exempt token, the one that the last token completes is not.
    assert run(SamplingParams(min_tokens=1, stop=("DE",)), [100, *ids_of("DE")]) == (Stop("stop", "DE", 3, 3), "DEF")


def test_min_tokens_do_not_exempt_a_character_that_is_complete_after_them() -> None:
    backend = chatml_tokenizer().backend_tokenizer
    token_ids = backend.encode("🔥", add_special_tokens=False).ids
    params = SamplingParams(min_tokens=len(token_ids) - 1, stop=("🔥",))
    assert run(params, token_ids, backend.decode) == (Stop("stop", "🔥", len(token_ids), 0), "")


def test_min_tokens_do_not_beat_a_limit() -> None:
    check = checker(SamplingParams(min_tokens=9), max_tokens=2).check
    assert check([40, 40]) == Stop("length", None, 2)


TEXT = "The kettle boils 你好,世界 👩‍🚀 and broke 🔥. naïve café\n\nWould I buy it again? No!"


@pytest.mark.parametrize("make_tokenizer", [chatml_tokenizer, mistral_tokenizer, gemma_tokenizer])
@pytest.mark.parametrize("min_tokens", [0, 7])
def test_stop_strings_are_found_at_the_first_token_that_completes_them(make_tokenizer: Any, min_tokens: int) -> None:
    # Every text stops where decoding it anew after each token shows the stop string for the first time.
    backend = make_tokenizer().backend_tokenizer
    token_ids = backend.encode(TEXT, add_special_tokens=False).ids
    text = backend.decode(token_ids)
    generator = random.Random(0)
    stops = ["世界", "🚀", "👩‍🚀 and", "🔥.", "é\n", "\n\n", "No!", " ", "T", "absent"]
    stops += [text[begin : begin + generator.randrange(1, 20)] for begin in generator.sample(range(len(text)), 12)]
    for stop_string in stops:
        expected = None
        exempt = len(backend.decode(token_ids[:min_tokens]).rstrip("�"))
        for num_tokens in range(min_tokens + 1, len(token_ids) + 1):
            so_far = backend.decode(token_ids[:num_tokens])
            begin = so_far.find(stop_string, max(0, exempt - len(stop_string) + 1))
            if begin >= 0:
                expected = (Stop("stop", stop_string, num_tokens, begin), so_far[:begin])
                break
        params = SamplingParams(stop=(stop_string,), min_tokens=min_tokens)
        assert run(params, token_ids, backend.decode) == (expected or (None, text)), repr(stop_string)


def test_stop_checker_looks_at_a_bounded_tail_only() -> None:
    looked_at = []

    def decode(token_ids: Sequence[int]) -> str:
        looked_at.append(len(token_ids))
        return decode_characters(token_ids)

    assert run(SamplingParams(stop=("never",), max_tokens=2000), [40] * 900, decode)[0] is None
    assert max(looked_at[:-1]) <= 40
