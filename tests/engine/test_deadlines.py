"""`row_timeout`: which requests are given up, when, and what becomes of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_models import save_model

from infer.engine.config import EngineConfig
from infer.engine.deadlines import Deadlines
from infer.engine.engine import Engine
from infer.engine.errors import ConfigError
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture
def clock():
    return Clock()


def make_engine(folder, clock, row_timeout=10.0, **config):
    config = EngineConfig(model=str(folder), dtype="float32", row_timeout=row_timeout, **config)
    return Engine(config, clock=clock)


def request(number, max_tokens=30, **settings):
    return Request(number, (5, 6, 7 + number), replace(GREEDY, max_tokens=max_tokens, **settings))


def steps(engine, clock, num_steps, seconds=1.0):
    completions = []
    for _ in range(num_steps):
        clock.now += seconds
        completions += engine.step()
        engine.scheduler.check()
    return completions


def test_requests_are_over_their_time_in_the_order_in_which_they_began(clock):
    deadlines = Deadlines(5.0, clock)
    deadlines.begin([1, 2])
    clock.now += 3
    deadlines.begin([2, 3])
    clock.now += 1.9
    assert deadlines.expired() == []
    clock.now += 0.1
    assert deadlines.expired() == [1, 2]
    deadlines.end(1)
    deadlines.begin([1])
    clock.now += 3
    assert deadlines.expired() == [2, 3]
    clock.now += 1000
    deadlines.restart()
    deadlines.begin([1, 2, 3])
    assert deadlines.expired() == []


def test_without_a_limit_nobody_is_given_up(clock):
    deadlines = Deadlines(None, clock)
    deadlines.begin([1])
    clock.now += 1e9
    assert deadlines.expired() == []


def test_request_over_its_time_ends_with_what_it_has_and_the_others_go_on(folder, clock):
    (expected,) = make_engine(folder, clock, None).generate([[5, 6, 8]], replace(GREEDY, max_tokens=12))
    engine = make_engine(folder, clock)
    engine.add_request(request(0))
    assert steps(engine, clock, 6) == []
    engine.add_request(request(1, max_tokens=12))
    (given_up,) = steps(engine, clock, 5)
    assert (given_up.request_id, given_up.error_code, given_up.finish_reason) == (0, "timeout", "error")
    assert given_up.error == "not finished within 10 s"
    assert (given_up.num_prompt_tokens, given_up.num_output_tokens, given_up.num_generated_tokens) == (3, 11, 11)
    (answer,) = steps(engine, clock, 7, seconds=0.1)
    assert (answer.request_id, answer.error_code, answer.token_ids) == (1, None, expected.token_ids)
    stats = engine.stats()
    assert (stats.num_requests_finished, stats.completion_tokens_total) == (2, 23)
    assert engine.scheduler.kv_cache_manager.pool.num_free_blocks == stats.num_blocks


def test_request_that_ends_in_time_and_in_the_same_step_is_answered(folder, clock):
    engine = make_engine(folder, clock)
    engine.add_request(request(0, max_tokens=11))
    (answer,) = steps(engine, clock, 11)
    assert answer.error_code is None


def test_time_spent_waiting_does_not_count(folder, clock):
    engine = make_engine(folder, clock, max_num_seqs=1)
    engine.add_request(request(0, max_tokens=8))
    engine.add_request(request(1, max_tokens=8))
    assert [answer.error_code for answer in steps(engine, clock, 16)] == [None, None]


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({"n": 3, "temperature": 1.0}, {}),
        ({"beam_width": 3, "n": 2}, {}),
        ({"n": 3, "temperature": 1.0}, {"max_num_seqs": 2}),
        ({"beam_width": 3}, {"max_num_seqs": 1}),
        ({}, {"speculative": "always"}),
        ({}, {"num_blocks": 6, "block_size": 4, "enable_admission_control": False, "preemption_mode": "swap"}),
    ],
)
def test_all_sequences_of_it_are_taken_out_wherever_they_are(folder, clock, settings, config):
    engine = make_engine(folder, clock, **config)
    for number in range(3):
        engine.add_request(request(number, **settings))
    completions = steps(engine, clock, 8)
    completions += steps(engine, clock, 1, seconds=20.0)
    while engine.has_unfinished_requests():
        completions += steps(engine, clock, 4)
        completions += steps(engine, clock, 1, seconds=20.0)
    codes = {completion.error_code for completion in completions}
    assert len(completions) == 3
    assert codes <= {"timeout", None}
    assert "timeout" in codes
    for completion in completions:
        assert len(completion.choices) <= settings.get("n", 1)
        assert completion.num_generated_tokens > 0
    pool = engine.scheduler.kv_cache_manager.pool
    assert pool.num_free_blocks == pool.num_blocks
    assert not engine.scheduler.has_unfinished()


def test_request_of_the_same_name_that_comes_again_has_its_time_anew(folder, clock):
    engine = make_engine(folder, clock)
    engine.add_request(request(0))
    assert [each.error_code for each in steps(engine, clock, 3, seconds=9.0)] == ["timeout"]
    engine.add_request(request(0, 4))
    assert [each.error_code for each in steps(engine, clock, 4)] == [None]


def test_failure_of_another_costs_nobody_his_time(folder, clock):
    engine = make_engine(folder, clock)
    engine.add_request(request(0, max_tokens=16))
    engine.add_request(request(1, max_tokens=16))
    steps(engine, clock, 8)
    engine.recover(RuntimeError("in the ninth"))
    assert [answer.error_code for answer in steps(engine, clock, 9)] == [None]
    assert [answer.error_code for answer in steps(engine, clock, 9)] == [None]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_limit_that_cannot_be_is_refused(seconds):
    with pytest.raises(ConfigError, match="row_timeout must be above 0"):
        EngineConfig(row_timeout=seconds)
