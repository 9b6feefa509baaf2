"""Priorities, who gives way, limits on prefills, and pauses: whole plans."""

from __future__ import annotations

import pytest
from schedulers import ShadowCache, make_scheduler, make_sequence, planned, run_step

from infer.engine.config import EngineConfig
from infer.engine.errors import ConfigError
from infer.engine.preemption import num_lost_tokens
from infer.engine.scheduler import Pause
from infer.engine.sequence import SequenceStatus


def add_all(scheduler, *sequences):
    for sequence in sequences:
        scheduler.add(sequence)


def test_smaller_priority_is_admitted_first():
    scheduler = make_scheduler(16, 4, max_num_seqs=1, scheduling_policy="priority")
    later, sooner = make_sequence(3, max_tokens=1, priority=2), make_sequence(3, max_tokens=1, priority=1)
    add_all(scheduler, later, sooner)
    assert [planned(run_step(scheduler)) for _ in range(2)] == [{sooner: 3}, {later: 3}]


def test_waiting_sequence_preempts_one_of_strictly_lower_priority():
    scheduler = make_scheduler(4, 4, scheduling_policy="priority", enable_prefix_caching=False)
    low = make_sequence(15, priority=1)
    scheduler.add(low)
    run_step(scheduler)
    high = make_sequence(7, priority=0)
    scheduler.add(high)
    output = run_step(scheduler)
    assert list(output.preempted) == [low]
    assert planned(output) == {high: 7}


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_waiting_sequence_never_preempts_an_equal(policy):
    scheduler = make_scheduler(4, 4, scheduling_policy=policy, enable_prefix_caching=False)
    running, waiting = make_sequence(12, priority=1), make_sequence(7, priority=1)
    scheduler.add(running)
    run_step(scheduler)
    scheduler.add(waiting)
    output = run_step(scheduler)
    assert output.preempted == {}
    assert planned(output) == {running: 1}


def test_nobody_is_preempted_for_one_whom_that_would_not_help():
    scheduler = make_scheduler(5, 4, scheduling_policy="priority", enable_prefix_caching=False)
    equal, low = make_sequence(11, priority=0), make_sequence(6, priority=1)
    add_all(scheduler, equal, low)
    run_step(scheduler)
    scheduler.add(make_sequence(13, priority=0))
    assert planned(run_step(scheduler)) == {equal: 1, low: 1}


def test_nobody_is_preempted_for_a_chunk_that_the_victims_budget_makes_too_long():
    limits = {"max_num_batched_tokens": 10, "enable_prefix_caching": False}
    scheduler = make_scheduler(5, 4, scheduling_policy="priority", **limits)
    equal, low = make_sequence(8, priority=0), make_sequence(2, priority=1)
    add_all(scheduler, equal, low)
    run_step(scheduler)
    scheduler.add(make_sequence(20, priority=0))
    output = run_step(scheduler)
    # One block is free and one is the low one's. Eight tokens would fit the two, but nine are left of the budget then.
    assert output.preempted == {}
    assert planned(output) == {equal: 1, low: 1}


def test_others_find_a_seat_behind_one_that_took_a_victims_place():
    scheduler = make_scheduler(4, 4, scheduling_policy="priority", max_num_seqs=3, enable_prefix_caching=False)
    low = make_sequence(15, priority=1)
    scheduler.add(low)
    run_step(scheduler)
    highs = [make_sequence(3, priority=0) for _ in range(4)]
    add_all(scheduler, *highs)
    output = run_step(scheduler)
    assert output.preempted == {low: highs[0]}
    assert planned(output) == dict.fromkeys(highs[:3], 3)


def test_sequence_whose_blocks_of_this_step_are_shared_is_no_victim_of_it():
    prompt = list(range(8))
    scheduler = make_scheduler(7, 4, scheduling_policy="priority", max_num_batched_tokens=12)
    other, low = make_sequence(8, priority=2), make_sequence([*prompt, 20, 21, 22], priority=2)
    add_all(scheduler, other, low)
    shadow = ShadowCache(4)
    assert planned(run_step(scheduler, shadow=shadow)) == {other: 8, low: 4}
    # `low` fills its second block in this step, and `high` attends to it; then `middle` finds no room.
    high, middle = make_sequence([*prompt, 30], priority=0), make_sequence(5, priority=1)
    add_all(scheduler, high, middle)
    output = run_step(scheduler, shadow=shadow)
    assert output.preempted == {other: middle}
    assert planned(output)[low] == 7


def test_blocks_that_victims_share_among_themselves_make_room_too():
    prompt = list(range(24))
    scheduler = make_scheduler(8, 4, scheduling_policy="priority")
    lows = [make_sequence([*prompt, token], priority=1) for token in (50, 51)]
    add_all(scheduler, *lows)
    run_step(scheduler)
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 0
    high = make_sequence(12, priority=0)
    scheduler.add(high)
    output = run_step(scheduler)
    assert set(output.preempted) == set(lows)
    assert planned(output) == {high: 12}


def test_running_are_served_in_the_order_of_their_classes():
    scheduler = make_scheduler(40, 4, scheduling_policy="priority", max_num_batched_tokens=8)
    low, high = make_sequence(8, priority=1), make_sequence(20, priority=0)
    scheduler.add(low)
    run_step(scheduler)
    scheduler.add(high)
    assert planned(run_step(scheduler)) == {low: 1, high: 7}
    assert planned(run_step(scheduler)) == {high: 8}


def test_short_prompts_pass_more_long_ones_than_there_are_seats():
    limits = {"long_prefill_token_threshold": 4, "max_long_partial_prefills": 1}
    scheduler = make_scheduler(64, 4, max_num_batched_tokens=20, max_num_seqs=3, **limits)
    longs, short = [make_sequence(30) for _ in range(6)], make_sequence(3)
    add_all(scheduler, *longs, short)
    assert planned(run_step(scheduler)) == {longs[0]: 4, short: 3}


@pytest.mark.parametrize(("num_longs", "is_begun"), [(7, True), (8, False)])
def test_no_more_are_passed_over_in_a_step_than_four_for_each_seat(num_longs, is_begun):
    limits = {"long_prefill_token_threshold": 4, "max_long_partial_prefills": 1}
    scheduler = make_scheduler(64, 4, max_num_batched_tokens=20, max_num_seqs=2, **limits)
    begun = make_sequence(30)
    scheduler.add(begun)
    run_step(scheduler)
    short = make_sequence(3)
    add_all(scheduler, *(make_sequence(30) for _ in range(num_longs)), short)
    assert planned(run_step(scheduler)) == {begun: 4} | ({short: 3} if is_begun else {})


def test_victim_is_who_loses_least_work_where_that_is_asked_for():
    scheduler = make_scheduler(8, 2, enable_prefix_caching=False, preemption_victim="least-waste")
    first, little, much = make_sequence(5), make_sequence(3), make_sequence(5)
    add_all(scheduler, first, little, much)
    run_step(scheduler)
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 0
    assert planned(run_step(scheduler)) == {first: 1, little: 1, much: 1}
    output = run_step(scheduler)
    assert output.preempted == {little: first}
    assert planned(output) == {first: 1, much: 1}, "those behind a victim are served"


def test_victim_is_who_came_last():
    scheduler = make_scheduler(8, 2, enable_prefix_caching=False)
    first, little, much = make_sequence(5), make_sequence(3), make_sequence(5)
    add_all(scheduler, first, little, much)
    run_step(scheduler)
    preempted = [list(run_step(scheduler).preempted) for _ in range(2)]
    assert preempted == [[], [much]]


def test_work_that_others_hold_too_is_not_lost_with_a_victim():
    scheduler = make_scheduler(9, 2, preemption_victim="least-waste")
    shared = [1, 2, 3, 4, 5, 6]
    first, sharer, own = make_sequence(3), make_sequence([*shared, 9]), make_sequence(4)
    other = make_sequence([*shared, 8])
    add_all(scheduler, first, other, sharer, own)
    run_step(scheduler)
    assert num_lost_tokens(sharer, 2) == 1
    assert num_lost_tokens(own, 2) == 4
    assert scheduler._victims.choose(scheduler.running, first) is sharer


def test_the_first_of_all_is_never_a_victim():
    scheduler = make_scheduler(8, 2, max_num_seqs=4, enable_prefix_caching=False)
    sequences = [make_sequence(3, max_tokens=12) for _ in range(6)]
    add_all(scheduler, *sequences)
    while scheduler.has_unfinished():
        oldest = next(each for each in sequences if each.status is not SequenceStatus.FINISHED)
        assert oldest not in run_step(scheduler).preempted
    assert scheduler.counters.num_preemptions > 0


def test_short_prompts_pass_long_ones():
    limits = {"long_prefill_token_threshold": 4, "max_long_partial_prefills": 1}
    scheduler = make_scheduler(64, 4, max_num_batched_tokens=20, **limits)
    long, other_long, short = make_sequence(30), make_sequence(30), make_sequence(3)
    add_all(scheduler, long, other_long, short)
    assert planned(run_step(scheduler)) == {long: 4, short: 3}
    assert list(scheduler.waiting) == [other_long]


def test_no_more_prompts_are_left_unfinished_than_allowed():
    limits = {"long_prefill_token_threshold": 4, "max_num_partial_prefills": 2}
    scheduler = make_scheduler(64, 4, max_num_batched_tokens=40, **limits)
    sequences = [make_sequence(30) for _ in range(4)]
    short = make_sequence(4)
    add_all(scheduler, *sequences, short)
    assert planned(run_step(scheduler)) == {sequences[0]: 4, sequences[1]: 4, short: 4}


def test_long_prefills_share_a_small_budget_fairly():
    scheduler = make_scheduler(64, 4, max_num_batched_tokens=12, long_prefill_token_threshold=10)
    first, second = make_sequence(30), make_sequence(30)
    add_all(scheduler, first, second)
    assert planned(run_step(scheduler)) == {first: 10, second: 2}
    assert planned(run_step(scheduler)) == {first: 6, second: 6}


def test_share_of_a_long_prefill_is_of_those_that_are_long():
    scheduler = make_scheduler(64, 4, max_num_batched_tokens=13, long_prefill_token_threshold=10)
    answering = make_sequence(2)
    scheduler.add(answering)
    run_step(scheduler)
    first, second, third = (make_sequence(40) for _ in range(3))
    add_all(scheduler, first, second, third)
    assert planned(run_step(scheduler)) == {answering: 1, first: 10, second: 2}
    scheduler.abort(third)
    assert planned(run_step(scheduler)) == {answering: 1, first: 6, second: 6}


def test_scheduler_that_is_paused_altogether_preempts_nobody():
    scheduler = make_scheduler(16, 4, max_num_seqs=1)
    running, waiting = make_sequence(3), make_sequence(3)
    add_all(scheduler, running, waiting)
    run_step(scheduler, lambda _: None)
    scheduler.pause = Pause.ALL
    assert run_step(scheduler).preempted == {}
    scheduler.pause = Pause.NOTHING
    output = run_step(scheduler)
    assert (output.preempted, planned(output)) == ({running: running}, {waiting: 3})


def test_paused_scheduler_loses_nothing():
    scheduler = make_scheduler(16, 4)
    running, waiting = make_sequence(3, max_tokens=5), make_sequence(3, max_tokens=5)
    scheduler.add(running)
    run_step(scheduler)
    scheduler.add(waiting)
    scheduler.pause = Pause.ALL
    assert planned(run_step(scheduler)) == {}
    scheduler.pause = Pause.ADMISSION
    assert planned(run_step(scheduler)) == {running: 1}
    scheduler.pause = Pause.NOTHING
    assert planned(run_step(scheduler)) == {running: 1, waiting: 3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_partial_prefills": -1}, "max_num_partial_prefills must not be negative: -1"),
        ({"max_long_partial_prefills": 1}, "max_long_partial_prefills needs long_prefill_token_threshold"),
        (
            {"long_prefill_token_threshold": 1, "enable_chunked_prefill": False},
            "long_prefill_token_threshold needs chunked prefill",
        ),
    ],
)
def test_limits_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)
