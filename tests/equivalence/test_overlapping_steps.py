"""Answers are the same where a step is launched before the tokens of the one before are read: whatever ends a row, for
rows that the device chooses for and others, however it is scheduled."""

from __future__ import annotations

import random

import pytest
from greedy import GREEDY, complete_checked, generate_ours, make_prompts, run_checked

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams

PROMPTS = make_prompts()
SEVERAL = [*PROMPTS, *make_prompts(seed=1), *make_prompts(seed=2, lengths=(40, 3, 57, 5, 5, 12))]

SCHEDULES = [
    {},
    {"enable_prefix_caching": False},
    {"max_num_batched_tokens": 1},
    {"max_num_batched_tokens": 7},
    {"max_num_batched_tokens": 96, "enable_chunked_prefill": False},
    {"block_size": 1},
    {"block_size": 7},
    {"max_num_seqs": 1},
    {"max_num_seqs": 3},
    {"num_blocks": 6, "enable_admission_control": False},
    {"num_blocks": 6, "enable_admission_control": False, "preemption_mode": "recompute"},
    {"num_blocks": 6, "enable_admission_control": False, "preemption_mode": "swap"},
    {"num_blocks": 6, "enable_admission_control": False, "enable_prefix_caching": False},
    {"num_blocks": 6, "enable_admission_control": False, "enable_host_cache": True, "swap_space": 0.01},
    {"num_blocks": 44, "block_size": 2, "max_num_batched_tokens": 16, "enable_admission_control": False},
    {"long_prefill_token_threshold": 9, "max_num_partial_prefills": 2, "max_long_partial_prefills": 1},
]


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
@pytest.mark.parametrize("config", SCHEDULES, ids=str)
def test_greedy_output_of_overlapping_steps_equals_transformers(oracle, model_type, config):
    folder, expected = oracle(model_type)
    assert generate_ours(folder, PROMPTS, async_scheduling=True, **config) == expected


ENDS = [
    SamplingParams(temperature=0.0, max_tokens=24, stop=("e", "th", "0 1")),
    SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop_token_ids=tuple(range(1, 384, 9))),
    SamplingParams(temperature=1.0, max_tokens=24),
    SamplingParams(temperature=1.3, top_p=0.9, max_tokens=13, stop_token_ids=tuple(range(0, 384, 7))),
    SamplingParams(temperature=0.8, n=3, max_tokens=12, stop=("a",)),
    SamplingParams(temperature=0.7, max_tokens=1),
    SamplingParams(temperature=0.7, min_tokens=4, max_tokens=9),
    SamplingParams(temperature=1.0, frequency_penalty=1.0, max_tokens=15),
    SamplingParams(temperature=0.0, logprobs=2, max_tokens=8),
    SamplingParams(beam_width=3, max_tokens=6),
    SamplingParams(temperature=0.0, max_tokens=16, bad_words=("the",)),
]


def run(folder, params, **config):
    """What comes of each prompt with the parameters at its place, and the engine."""
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", speculative="off", **config))
    engine.fit_cache()
    for index, prompt in enumerate(SEVERAL):
        engine.add_request(Request(index, tuple(prompt), params[index % len(params)], seed=1000 + index))
    completions = {}
    while engine.has_unfinished_requests():
        for completion in engine.step():
            completions[completion.request_id] = completion
        engine.scheduler.check()
    assert engine.scheduler.kv_cache_manager.pool.num_free_blocks == engine.stats().num_blocks
    answers = []
    for index in range(len(SEVERAL)):
        completion = completions[index]
        assert completion.error is None, completion
        answers.append([(c.token_ids, c.text, c.finish_reason, c.stop_reason) for c in completion.choices])
        answers[-1].append((completion.num_prompt_tokens, completion.num_generated_tokens))
    return answers, engine


@pytest.mark.parametrize("params", ENDS, ids=lambda params: params.describe() if hasattr(params, "describe") else None)
def test_rows_of_one_kind_end_where_they_end_without_overlap(oracle, params):
    folder, _ = oracle("llama")
    assert run(folder, [params], async_scheduling=True)[0] == run(folder, [params])[0]


@pytest.mark.parametrize("config", SCHEDULES, ids=str)
def test_rows_of_all_kinds_together_end_where_they_end_without_overlap(oracle, config):
    folder, _ = oracle("llama")
    # Three answers, and three beams, do not fit one seat.
    ends = [each for each in ENDS if config.get("max_num_seqs", 9) > 1 or each.num_branches == 1]
    expected, _ = run(folder, ends)
    if config.get("num_blocks") == 6:
        ends = [each for each in ends if each.beam_width is None]
        expected, _ = run(folder, ends)
    assert run(folder, ends, async_scheduling=True, **config)[0] == expected


def test_small_pool_did_preempt_rows_with_a_token_that_was_not_read(oracle):
    folder, expected = oracle("llama")
    engine = Engine(
        EngineConfig(
            model=str(folder), dtype="float32", async_scheduling=True, num_blocks=6, enable_admission_control=False
        )
    )
    preempted = []
    schedule = engine.scheduler.schedule

    def noting_schedule():
        output = schedule()
        preempted.extend(sequence for sequence in output.preempted if sequence.num_pending_tokens)
        return output

    engine.scheduler.schedule = noting_schedule
    completions = run_checked(engine, PROMPTS, GREEDY)
    assert [list(completion.token_ids) for completion in completions] == expected
    assert preempted


def test_last_token_costs_no_step_of_its_own_and_a_stop_costs_one(oracle):
    folder, _ = oracle("llama")

    def num_decoded(params, **config):
        engine = Engine(EngineConfig(model=str(folder), dtype="float32", speculative="off", **config))
        engine.generate([PROMPTS[0]], params)
        return engine.scheduler.counters.decode_tokens

    assert num_decoded(GREEDY, async_scheduling=True) == num_decoded(GREEDY) == GREEDY.max_tokens - 1
    (answer,) = complete_checked(folder, [PROMPTS[0]], GREEDY)
    stop_id = answer.token_ids[5]
    stopping = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, stop_token_ids=(stop_id,))
    at = answer.token_ids.index(stop_id)
    assert num_decoded(stopping) == at
    assert num_decoded(stopping, async_scheduling=True) == at + 1


def test_aborted_and_added_requests_leave_others_as_they_are(oracle):
    folder, expected = oracle("llama")
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", async_scheduling=True, max_num_seqs=4))
    engine.fit_cache()
    rng = random.Random(0)
    answers, aborted = {}, set()
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(Request(index, tuple(prompt), GREEDY))
        engine.add_request(Request(100 + index, tuple(prompt[::-1]), GREEDY))
        for _ in range(rng.randrange(4)):
            answers |= {each.request_id: list(each.token_ids) for each in engine.step()}
            engine.scheduler.check()
        if 100 + index not in answers:
            aborted.add(100 + index)
            engine.abort_request(100 + index)
            engine.scheduler.check()
    while engine.has_unfinished_requests():
        answers |= {each.request_id: list(each.token_ids) for each in engine.step()}
        engine.scheduler.check()
    assert aborted
    assert [answers[index] for index in range(len(PROMPTS))] == expected


def test_failed_step_loses_no_answer(oracle):
    folder, expected = oracle("llama")
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", async_scheduling=True))
    engine.fit_cache()
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(Request(index, tuple(prompt), GREEDY))
    execute, answers, num_steps = engine._executor.runner.execute, {}, 0

    def failing_execute(*args):
        nonlocal num_steps
        num_steps += 1
        if num_steps in (3, 7):
            raise RuntimeError("once in a while")
        return execute(*args)

    engine._executor.runner.execute = failing_execute
    while engine.has_unfinished_requests():
        try:
            completions = engine.step()
        except RuntimeError as error:
            completions = engine.recover(error)
        answers |= {each.request_id: list(each.token_ids) for each in completions}
        engine.scheduler.check()
    assert num_steps > 7
    assert [answers[index] for index in range(len(PROMPTS))] == expected


def test_overlap_is_off_on_a_cpu_and_refused_beside_drafts():
    assert not EngineConfig().overlaps_steps_on("cpu")
    assert EngineConfig().overlaps_steps_on("cuda")
    assert not EngineConfig(speculative="always").overlaps_steps_on("cuda")
    assert EngineConfig(async_scheduling=True).overlaps_steps_on("cpu")
    assert not EngineConfig(async_scheduling=False).overlaps_steps_on("cuda")
    with pytest.raises(ValueError, match="drafts"):
        EngineConfig(async_scheduling=True, speculative="always")
