import math
from typing import Any

import pytest

from infer.engine.errors import ConfigError
from infer.engine.sampling_params import SamplingParams, describe, from_generation_config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -0.1}, "temperature must be a finite number, at least 0: -0.1"),
        ({"temperature": math.nan}, "temperature must be a finite number, at least 0: nan"),
        ({"temperature": math.inf}, "temperature must be a finite number, at least 0: inf"),
        ({"temperature": 10**39}, f"temperature must be a finite number, at least 0: {10**39}"),
        ({"temperature": "0.7"}, "temperature must be a finite number, at least 0: '0.7'"),
        ({"temperature": True}, "temperature must be a finite number, at least 0: True"),
        ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1: 0.0"),
        ({"top_p": 1.01}, "top_p must be a number above 0 and at most 1: 1.01"),
        ({"top_k": -2}, "top_k must be a whole number, at least 1, or 0 for all: -2"),
        ({"top_k": 2.0}, "top_k must be a whole number, at least 1, or 0 for all: 2.0"),
        ({"min_p": 1.5}, "min_p must be a number from 0 to 1: 1.5"),
        ({"presence_penalty": 2.1}, "presence_penalty must be a number from -2 to 2: 2.1"),
        ({"frequency_penalty": -2.1}, "frequency_penalty must be a number from -2 to 2: -2.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a finite number, at least 0.001: 0.0"),
        ({"stop": ""}, "stop must be texts, none of them empty: ''"),
        ({"stop": ("a", "")}, "stop must be texts, none of them empty: ('a', '')"),
        ({"stop": "abc"}, "stop must be texts, none of them empty: 'abc'"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids must be a sequence of token ids: (-1,)"),
        ({"max_tokens": 0}, "max_tokens must be a whole number, at least 1: 0"),
        ({"min_tokens": -1}, "min_tokens must be a whole number, at least 0: -1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens must be at most max_tokens, 8: 9"),
        ({"ignore_eos": "no"}, "ignore_eos must be true or false: 'no'"),
        ({"logprobs": 1001}, "logprobs must be a whole number from 0 to 1000: 1001"),
        ({"logprobs": -1}, "logprobs must be a whole number from 0 to 1000: -1"),
        ({"logit_bias": {5: 101}}, "logit_bias must be token ids with numbers from -100 to 100: {5: 101}"),
        ({"logit_bias": {"5": 1}}, "logit_bias must be token ids with numbers from -100 to 100: {'5': 1}"),
        ({"logit_bias": [5]}, "logit_bias must be token ids with numbers from -100 to 100: [5]"),
        ({"bad_words": ("",)}, "bad_words must be texts, none of them empty: ('',)"),
        ({"allowed_token_ids": ()}, "allowed_token_ids must be a sequence of at least one token id: ()"),
    ],
)
def test_sampling_params_refuse_what_cannot_work(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**given)
    assert str(caught.value) == message


def test_sampling_params_accept_the_ends_of_their_ranges() -> None:
    params = SamplingParams(
        temperature=0,
        top_p=1,
        top_k=-1,
        min_p=1,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1e-3,
        max_tokens=1,
        min_tokens=1,
        logprobs=0,
        logit_bias={0: -100, 1: 100},
        allowed_token_ids=(0,),
    )
    assert params.is_greedy
    assert params.has_penalties


def test_generation_config_that_samples_gives_its_values() -> None:
    config = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.05,
        "max_new_tokens": 7,
        "eos_token_id": [1, 2],
    }
    assert from_generation_config(config) == SamplingParams(
        temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.05
    )


def test_generation_config_that_samples_leaves_the_rest_off() -> None:
    assert from_generation_config({"do_sample": True, "top_k": None}) == SamplingParams()


@pytest.mark.parametrize("config", [{}, {"do_sample": False}, {"do_sample": None, "temperature": 0.6, "top_k": 20}])
def test_generation_config_that_does_not_sample_is_greedy(config: dict[str, object]) -> None:
    assert from_generation_config(config) == SamplingParams(temperature=0.0)


def test_generation_config_keeps_the_repetition_penalty_when_greedy() -> None:
    assert from_generation_config({"repetition_penalty": 1.1}) == SamplingParams(
        temperature=0.0, repetition_penalty=1.1
    )


def test_generation_config_out_of_range_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        from_generation_config({"do_sample": True, "top_p": 2})
    assert str(caught.value) == "generation_config.json: top_p must be a number above 0 and at most 1: 2"


@pytest.mark.parametrize(
    ("params", "line"),
    [
        (SamplingParams(), "temperature 1, max_tokens 512"),
        (SamplingParams(temperature=0.0, top_p=0.5, top_k=4), "greedy, max_tokens 512"),
        (SamplingParams(beam_width=4, top_k=5, n=2), "beam search over 4, max_tokens 512, n 2"),
        (SamplingParams(temperature=0.6, top_k=20, max_tokens=64), "temperature 0.6, max_tokens 64, top_k 20"),
        (
            SamplingParams(temperature=0, repetition_penalty=1.1, stop=("\n",), ignore_eos=True),
            "greedy, max_tokens 512, repetition_penalty 1.1, stop ('\\n',), ignore_eos True",
        ),
    ],
)
def test_describe_tells_what_has_an_effect(params: SamplingParams, line: str) -> None:
    assert describe(params) == line
