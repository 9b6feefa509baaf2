from typing import Any

import pytest

from infer.engine.errors import RequestError
from infer.engine.sampling_params import SamplingParams
from infer.engine.sampling_row import SamplingRow, compile_rules, prompt_vocabulary

WORDS = {"bad": [5], " bad": [6], "worse yet": [7, 8], " worse yet": [9, 8], "": [], " ": []}


def compiled(**params: Any) -> Any:
    return compile_rules(
        SamplingParams(**params), vocab_size=100, eos_token_ids={2, 3, 250}, encode=lambda text: WORDS[text]
    )


def test_rules_are_none_where_nothing_is_barred_or_biased() -> None:
    assert compiled(temperature=0.5, top_k=3, repetition_penalty=1.2, stop_token_ids=(4,)) is None


def test_rules_bar_a_word_with_and_without_a_space() -> None:
    rules = compiled(bad_words=("bad", " worse yet", " "))
    assert rules.banned.tolist() == [5, 6]
    assert rules.banned_sequences == ((7, 8), (9, 8))


def test_rules_know_every_token_that_ends_a_request() -> None:
    assert compiled(min_tokens=3, stop_token_ids=(4,)).stopping.tolist() == [2, 3, 4]
    assert compiled(min_tokens=3, stop_token_ids=(4,), ignore_eos=True).stopping.tolist() == [4]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"allowed_token_ids": (5, 100)}, "allowed_token_ids must be below the vocabulary size, 100: 100"),
        ({"stop_token_ids": (101,)}, "stop_token_ids must be below the vocabulary size, 100: 101"),
        ({"logit_bias": {102: 1.0}}, "logit_bias must be below the vocabulary size, 100: 102"),
    ],
)
def test_rules_refuse_a_token_that_the_model_does_not_have(params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        compiled(**params)
    assert (caught.value.code, str(caught.value)) == ("invalid_input", message)


def test_prompt_vocabulary_is_empty_where_nobody_asks() -> None:
    assert prompt_vocabulary(SamplingParams(repetition_penalty=1.1), [4, 2, 4]).tolist() == [2, 4]
    assert prompt_vocabulary(SamplingParams(presence_penalty=1.1), [4, 2, 4]).tolist() == []


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        ({"temperature": 0.0, "top_p": 0.5, "logprobs": 3}, True),
        ({"temperature": 0.5}, False),
        ({"temperature": 0.0, "frequency_penalty": 0.1}, False),
        ({"temperature": 0.0, "min_tokens": 1}, False),
    ],
)
def test_row_is_plain_when_the_most_probable_token_is_taken(params: dict[str, Any], plain: bool) -> None:
    sampling_params = SamplingParams(**params)
    row = SamplingRow(sampling_params, [], 0, compiled(**params), prompt_vocabulary(sampling_params, []))
    assert row.is_plain is plain


def row(params: SamplingParams, output: list[int]) -> SamplingRow:
    return SamplingRow(params, output, 7, None, prompt_vocabulary(params, ()))


def test_row_ahead_counts_the_drafts_as_output() -> None:
    ahead = row(SamplingParams(temperature=1.0), [4]).ahead([5, 6])
    assert [list(each.output_token_ids) for each in ahead] == [[4], [4, 5], [4, 5, 6]]
    assert {each.seed for each in ahead} == {7}


def test_row_ahead_of_drafts_sees_what_is_appended_later() -> None:
    output = [4]
    first, _ = row(SamplingParams(temperature=1.0), output).ahead([5])
    output.append(9)
    assert list(first.output_token_ids) == [4, 9]


def test_plain_row_is_its_own_row_ahead() -> None:
    plain = row(SamplingParams(temperature=0.0), [4])
    assert all(each is plain for each in plain.ahead([5, 6]))
    assert len(plain.ahead([5, 6])) == 3
