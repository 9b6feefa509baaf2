"""Several answers to a request: each as if it were the only one, from a prompt that is computed once."""

from __future__ import annotations

import pytest
from greedy import complete_checked, make_prompts
from tiny_models import save_model

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.errors import ConfigError
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.engine.seeding import branch_seed, derive_seed

PROMPTS = make_prompts(lengths=(1, 16, 33, 7))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("llama"), "llama")


def drawn(**settings):
    return SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True, **settings)


def draw_alone(folder, num_branches):
    """By prompt the answers of requests of one answer each, with the seeds that the branches of one request have."""
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", max_num_seqs=1))
    answers = []
    for number, prompt in enumerate(PROMPTS):
        seed = derive_seed(0, number, 0)
        for branch_index in range(num_branches):
            request = Request(branch_index, tuple(prompt), drawn(), branch_seed(seed, branch_index))
            engine.add_request(request)
        found = {}
        while engine.has_unfinished_requests():
            found |= {completion.request_id: completion.token_ids for completion in engine.step()}
        answers.append([found[branch_index] for branch_index in range(num_branches)])
    return answers


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"enable_prefix_caching": False},
        {"block_size": 7},
        {"max_num_seqs": 2},
        {"max_num_batched_tokens": 5},
        {"num_blocks": 6, "enable_admission_control": False},
        {"num_blocks": 6, "enable_admission_control": False, "enable_prefix_caching": False},
    ],
    ids=str,
)
def test_each_answer_is_what_it_would_be_alone(folder, config):
    completions = complete_checked(folder, PROMPTS, drawn(n=4), **config)
    assert [[choice.token_ids for choice in each.choices] for each in completions] == draw_alone(folder, 4)


def test_prompt_is_computed_once(folder):
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", enable_prefix_caching=False))
    engine.generate([list(range(4, 44))], drawn(n=8))
    counters = engine.scheduler.counters
    assert (counters.prefill_tokens, counters.decode_tokens) == (40, 8 * 8)


def test_best_are_the_likeliest_a_token(folder):
    (every,) = complete_checked(folder, PROMPTS[:1], drawn(n=6, best_of=6, logprobs=0))
    means = [sum(token.logprob for token in choice.logprobs) / 9 for choice in every.choices]
    assert [choice.score for choice in every.choices] == pytest.approx(sorted(means, reverse=True))
    (best,) = complete_checked(folder, PROMPTS[:1], drawn(n=2, best_of=6))
    assert [choice.token_ids for choice in best.choices] == [choice.token_ids for choice in every.choices[:2]]
    assert best.choices[0].logprobs is None


def test_answers_end_each_for_itself(folder):
    params = SamplingParams(temperature=1.0, max_tokens=20, n=8, stop_token_ids=tuple(range(0, 384, 7)))
    (completion,) = complete_checked(folder, PROMPTS[:1], params)
    assert len({len(choice.token_ids) for choice in completion.choices}) > 2


def test_request_of_several_answers_fails_and_is_aborted_as_one(folder):
    engine = Engine(EngineConfig(model=str(folder), dtype="float32"))
    barred = SamplingParams(temperature=1.0, n=3, allowed_token_ids=(5,), bad_words=("a",), max_tokens=4)
    engine.add_request(Request(0, (5, 6), drawn(n=3)))
    engine.step()
    assert len(engine.scheduler.running) == 3
    engine.abort_request(0)
    assert not engine.scheduler.has_unfinished()
    assert engine.scheduler.kv_cache_manager.pool.num_free_blocks == engine.stats().num_blocks
    assert engine.generate([[5, 6]], barred)[0].error_code is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 2, "temperature": 0.0}, "temperature must be above 0 where several answers are drawn"),
        ({"n": 3, "best_of": 2}, "best_of must be at least n, 3: 2"),
        ({"n": 3, "beam_width": 2}, "beam_width must be at least n, 3: 2"),
        ({"beam_width": 2, "stop": ("a",)}, r"beam search takes no stop: \('a',\)"),
        ({"beam_width": 2, "logit_bias": {3: 1.0}}, "beam search takes no logit_bias"),
        ({"length_penalty": 2.0}, "length_penalty needs beam_width: 2"),
        ({"beam_width": 2, "length_penalty": 400}, "length_penalty must be a number from -10 to 10: 400"),
        ({"n": 0}, "n must be a whole number from 1 to 256: 0"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**settings)
