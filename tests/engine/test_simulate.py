"""The scheduler on its own: what a tight cache costs, with and without foresight, and that nothing is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from infer.engine.config import EngineConfig
from infer.engine.cost_model import CostModel
from infer.engine.simulate import SimulatedRequest, simulate

COSTS = CostModel(
    num_parameters=135_000_000,
    bytes_per_parameter=2,
    bytes_per_cached_token=23_040,
    flops=400e9,
    bandwidth=32e9,
    bus_bandwidth=8e9,
    seconds_per_step=0.004,
)


def make_requests(num_requests, *, seed=0, prefix=()):
    generator = random.Random(seed)
    for index in range(num_requests):
        length = min(400, max(10, int(generator.lognormvariate(4.5, 0.6))))
        num_output = min(256, max(1, int(generator.lognormvariate(4.2, 0.9))))
        yield SimulatedRequest((*prefix, *range(1000 * index, 1000 * index + length)), num_output, 256)


def run(requests, *, num_blocks=400, **config):
    return simulate(requests, EngineConfig(max_num_seqs=128, **config), num_blocks, COSTS)


def test_every_token_is_computed_and_counted():
    requests = list(make_requests(50))
    result = run(requests, num_blocks=4000)
    assert result.num_requests == 50
    assert result.num_prompt_tokens == sum(len(each.prompt_token_ids) for each in requests)
    assert result.num_output_tokens == sum(each.num_output_tokens for each in requests)
    # The last token of an answer need not be computed.
    assert result.num_computed_tokens == result.num_prompt_tokens + result.num_output_tokens - 50
    assert (result.num_preemptions, result.num_wasted_tokens) == (0, 0)


def test_prefix_is_found_by_all_but_the_first():
    result = run(make_requests(20, prefix=range(-64, 0)), num_blocks=4000)
    assert result.num_cached_tokens == 19 * 64


def test_seconds_are_those_of_the_cost_model():
    (request,) = make_requests(1)
    result = run([request])
    length = len(request.prompt_token_ids)
    expected = COSTS.step_seconds(length, length)
    expected += sum(COSTS.step_seconds(1, length + step) for step in range(1, request.num_output_tokens))
    assert result.seconds == pytest.approx(expected)


def test_cost_of_a_step_is_the_greater_of_computing_and_reading_the_weights():
    assert COSTS.step_seconds(1, 0) == pytest.approx(135e6 * 2 / 32e9 + 0.004)
    assert COSTS.step_seconds(1000, 0) == pytest.approx(2 * 135e6 * 1000 / 400e9 + 0.004)
    assert COSTS.step_seconds(1, 1000) - COSTS.step_seconds(1, 0) == pytest.approx(23_040 * 1000 / 32e9)


def test_cache_four_times_too_small_wastes_little_with_foresight_and_much_without():
    # 128 sequences of about 120 + 90 tokens would need about 1,600 blocks of 16 tokens.
    foresight = run(make_requests(400))
    assert foresight.share_wasted < 0.05
    for victim in ("last", "least-waste"):
        without = run(
            make_requests(400), enable_admission_control=False, preemption_victim=victim, preemption_mode="recompute"
        )
        assert without.share_wasted > 0.10
        assert foresight.seconds < without.seconds


def test_swapping_wastes_nothing_and_auto_is_never_worse_than_the_better():
    def seconds(costs, mode):
        config = EngineConfig(max_num_seqs=128, enable_admission_control=False, preemption_mode=mode, swap_space=4.0)
        result = simulate(make_requests(400), config, 400, costs)
        assert result.num_preemptions > 0
        assert (result.num_wasted_tokens == 0) == (result.num_swaps > 0)
        return result.seconds

    for costs, better in ((COSTS, "swap"), (replace(COSTS, bus_bandwidth=30e6), "recompute")):
        by_mode = {mode: seconds(costs, mode) for mode in ("recompute", "swap", "auto")}
        assert min(by_mode, key=by_mode.__getitem__) == better
        assert by_mode["auto"] == by_mode[better]


def test_copies_are_counted_in_the_seconds():
    config = EngineConfig(max_num_seqs=128, enable_admission_control=False, swap_space=4.0)
    num_copied = 0

    def count(scheduler, output):
        nonlocal num_copied
        num_copied += len(output.transfers.out) + len(output.transfers.back)

    free = simulate(make_requests(400), config, 400, replace(COSTS, bus_bandwidth=float("inf")), on_step=count)
    result = simulate(make_requests(400), config, 400, COSTS)
    assert num_copied > 0
    assert result.seconds - free.seconds == pytest.approx(num_copied * 16 * 23_040 / 8e9)


def test_a_limit_far_beyond_what_answers_need_does_not_hold_them_back():
    def with_limit(limit):
        for request in make_requests(400):
            yield SimulatedRequest(request.prompt_token_ids, request.num_output_tokens, limit)

    narrow, wide = run(with_limit(256), num_blocks=1000), run(with_limit(16_384), num_blocks=1000)
    assert wide.seconds < 1.5 * narrow.seconds


def test_requests_are_pulled_as_they_are_needed():
    pulled = 0

    def counting():
        nonlocal pulled
        for request in make_requests(5000):
            pulled += 1
            yield request

    class StopError(Exception):
        pass

    def stop(scheduler, output):
        raise StopError

    with pytest.raises(StopError):
        simulate(counting(), EngineConfig(max_num_seqs=8), 4000, COSTS, on_step=stop)
    assert pulled == 32
