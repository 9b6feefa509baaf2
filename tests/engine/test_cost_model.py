"""What a preemption costs, by copy and by computation, and which of the two `auto` takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedulers import make_scheduler, make_sequence, run_step

from infer.engine.cost_model import CostModel
from infer.engine.preemption import ModeChooser

COSTS = CostModel(
    num_parameters=1000,
    bytes_per_parameter=2,
    bytes_per_cached_token=100,
    flops=1e6,
    bandwidth=1e6,
    bus_bandwidth=1e6,
    seconds_per_step=1.0,
)


def test_copy_takes_the_bus_and_computation_the_arithmetic():
    assert COSTS.copy_seconds(10) == pytest.approx(1e-3)
    assert COSTS.recompute_seconds(10) == pytest.approx(20e-3)


@pytest.mark.parametrize(("slowdown", "is_swapped"), [(1, True), (9, True), (11, False)])
def test_auto_takes_what_costs_less_there_and_back(slowdown, is_swapped):
    scheduler = make_scheduler(8, 4)
    sequence = make_sequence(6)
    scheduler.add(sequence)
    run_step(scheduler)
    costs = replace(COSTS, bus_bandwidth=COSTS.bus_bandwidth / slowdown)
    assert ModeChooser("auto", costs, 4).swaps(sequence) is is_swapped
    assert ModeChooser("swap", costs, 4).swaps(sequence)
    assert not ModeChooser("recompute", costs, 4).swaps(sequence)


def test_auto_computes_little_again_behind_a_long_prefix_that_others_hold():
    scheduler = make_scheduler(16, 4)
    sharers = [make_sequence([*range(20), own]) for own in (30, 31)]
    for sequence in sharers:
        scheduler.add(sequence)
    run_step(scheduler)
    # One token is computed again, or 21 are copied out and one back.
    costs = replace(COSTS, bus_bandwidth=COSTS.bus_bandwidth / 2)
    assert not ModeChooser("auto", costs, 4).swaps(sharers[1])
    scheduler.abort(sharers[0])
    assert ModeChooser("auto", costs, 4).swaps(sharers[1])
