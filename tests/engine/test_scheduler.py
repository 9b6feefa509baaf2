"""Scheduler: whole plans, exact blocks, and the worked case of its specification."""

from __future__ import annotations

import pytest
from schedulers import block_ids, make_scheduler, make_sequence, planned, run_step

from infer.engine.sequence import SequenceStatus


def test_prompt_is_computed_in_chunks_of_the_budget_and_sampled_at_its_end():
    scheduler = make_scheduler(16, 4, max_num_batched_tokens=8)
    sequence = make_sequence(18)
    scheduler.add(sequence)
    assert [planned(run_step(scheduler)) for _ in range(3)] == [{sequence: 8}, {sequence: 8}, {sequence: 2}]
    assert sequence.output_token_ids == [7]
    assert block_ids(sequence) == [1, 2, 3, 4, 5]


def test_arrival_is_how_many_came_before():
    scheduler = make_scheduler(16, 4)
    sequences = [make_sequence(3) for _ in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    assert [sequence.arrival for sequence in sequences] == [0, 1, 2]


def test_running_sequences_are_served_before_waiting_ones():
    scheduler = make_scheduler(16, 4, max_num_batched_tokens=8)
    first, second = make_sequence(4), make_sequence(12)
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(second)
    assert planned(run_step(scheduler)) == {first: 1, second: 7}


def test_long_prefill_threshold_leaves_budget_for_others():
    scheduler = make_scheduler(32, 4, max_num_batched_tokens=16, long_prefill_token_threshold=6)
    long, short = make_sequence(20), make_sequence(5)
    scheduler.add(long)
    scheduler.add(short)
    assert planned(run_step(scheduler)) == {long: 6, short: 5}


def test_no_more_than_max_num_seqs_run():
    scheduler = make_scheduler(16, 4, max_num_seqs=2)
    sequences = [make_sequence(3, max_tokens=1) for _ in range(5)]
    for sequence in sequences:
        scheduler.add(sequence)
    assert [list(planned(run_step(scheduler))) for _ in range(3)] == [sequences[:2], sequences[2:4], sequences[4:]]
    assert not scheduler.has_unfinished()


@pytest.mark.parametrize("enable_chunked_prefill", [True, False])
def test_worked_case_a_sequence_gets_all_blocks_of_its_chunk_or_none(enable_chunked_prefill):
    scheduler = make_scheduler(10, 64, max_num_seqs=3, enable_chunked_prefill=enable_chunked_prefill)
    holder = make_sequence(64 * 5 - 1, max_tokens=50)
    scheduler.add(holder)
    run_step(scheduler)
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 5
    a, b = make_sequence(200), make_sequence(128)
    scheduler.add(a)
    scheduler.add(b)
    output = run_step(scheduler)
    assert planned(output) == {holder: 1, a: 200}
    assert len(a.block_table) == 4
    assert b.block_table == []
    assert b.status is SequenceStatus.WAITING
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 1


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_the_budget():
    scheduler = make_scheduler(16, 4, max_num_batched_tokens=8, enable_chunked_prefill=False)
    first, second = make_sequence(6), make_sequence(5)
    scheduler.add(first)
    scheduler.add(second)
    assert planned(run_step(scheduler)) == {first: 6}
    assert planned(run_step(scheduler)) == {first: 1, second: 5}


def test_the_last_running_is_preempted_and_computes_again_from_the_front_of_the_queue():
    scheduler = make_scheduler(4, 2, enable_prefix_caching=False)
    first, second, third = make_sequence(4, max_tokens=3), make_sequence(4, max_tokens=3), make_sequence(1)
    for sequence in (first, second, third):
        scheduler.add(sequence)
    assert planned(run_step(scheduler)) == {first: 4, second: 4}
    output = run_step(scheduler)
    assert list(output.preempted) == [second]
    assert planned(output) == {first: 1}
    assert list(scheduler.waiting) == [second, third]
    assert second.num_computed_tokens == 0
    run_step(scheduler)
    assert planned(run_step(scheduler)) == {second: 5, third: 1}
    assert scheduler.counters.num_preemptions == 1
    assert scheduler.counters.tokens_wasted == 4


def test_nobody_is_begun_in_a_step_in_which_one_that_runs_finds_no_room():
    scheduler = make_scheduler(4, 2, enable_prefix_caching=False, long_prefill_token_threshold=2)
    first, second = make_sequence(3, max_tokens=4), make_sequence(4, max_tokens=4)
    scheduler.add(first)
    scheduler.add(second)
    run_step(scheduler)
    run_step(scheduler)
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 0
    output = run_step(scheduler)
    # Its blocks are free now, and a first chunk of it would fit them.
    assert output.preempted == {second: second}
    assert planned(output) == {first: 1}
    assert planned(run_step(scheduler)) == {first: 1, second: 2}


def test_a_sequence_gives_way_itself_where_nobody_is_served_after_it():
    scheduler = make_scheduler(4, 2, enable_prefix_caching=False)
    first, second = make_sequence(4, max_tokens=2), make_sequence(2, max_tokens=2)
    scheduler.add(first)
    scheduler.add(second)
    assert planned(run_step(scheduler)) == {first: 4, second: 2}
    output = run_step(scheduler)
    # The first takes the last block, and the second may not take it from the first.
    assert planned(output) == {first: 1}
    assert output.preempted == {second: second}


def test_budget_of_a_victim_goes_back():
    scheduler = make_scheduler(4, 2, max_num_batched_tokens=4, scheduling_policy="priority")
    low, high = make_sequence(7, priority=1), make_sequence(4, priority=0)
    scheduler.add(low)
    run_step(scheduler)
    run_step(scheduler)
    scheduler.add(high)
    output = run_step(scheduler)
    # The low one had been planned with a token of the four.
    assert output.preempted == {low: high}
    assert planned(output) == {high: 4}


def test_prefix_hit_is_at_most_all_tokens_but_one():
    scheduler = make_scheduler(16, 4)
    tokens = list(range(8))
    first, second = make_sequence(tokens, max_tokens=1), make_sequence(tokens, max_tokens=1)
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(second)
    assert planned(run_step(scheduler)) == {second: 4}
    assert second.num_cached_tokens == 4


def test_siblings_of_one_step_share_the_prefix_the_first_one_computes():
    scheduler = make_scheduler(64, 4)
    tokens = list(range(10))
    siblings = [make_sequence([*tokens, 100 + i]) for i in range(20)]
    for sequence in siblings:
        scheduler.add(sequence)
    assert list(planned(run_step(scheduler)).values()) == [11] + [3] * 19
    assert {tuple(block_ids(sequence)[:2]) for sequence in siblings} == {(1, 2)}


def test_siblings_wait_for_a_prefix_that_another_is_still_computing():
    scheduler = make_scheduler(64, 4, long_prefill_token_threshold=8)
    tokens = list(range(20))
    first, second, other = make_sequence([*tokens, 1]), make_sequence([*tokens, 2]), make_sequence(3)
    for sequence in (first, second, other):
        scheduler.add(sequence)
    assert planned(run_step(scheduler)) == {first: 8, other: 3}
    assert planned(run_step(scheduler)) == {first: 8, other: 1}
    assert planned(run_step(scheduler)) == {first: 5, other: 1, second: 1}
    assert second.num_cached_tokens == 20


def test_finished_prefixes_are_evicted_tails_first():
    scheduler = make_scheduler(4, 2)
    first = make_sequence([1, 2, 3, 4, 5, 6], max_tokens=1)
    scheduler.add(first)
    run_step(scheduler)
    filler = make_sequence(4, max_tokens=1)
    scheduler.add(filler)
    run_step(scheduler)
    again = make_sequence([1, 2, 3, 4, 5, 6], max_tokens=1)
    scheduler.add(again)
    assert planned(run_step(scheduler)) == {again: 2}, "one of three blocks was evicted, and it was the last"


def test_preempted_sequence_comes_back_onto_its_own_blocks():
    scheduler = make_scheduler(5, 2)
    first, second = make_sequence(4, max_tokens=4), make_sequence(4, max_tokens=4)
    scheduler.add(first)
    scheduler.add(second)
    while scheduler.has_unfinished():
        run_step(scheduler)
    assert scheduler.counters.num_preemptions > 0
    assert scheduler.counters.tokens_wasted < 4 * scheduler.counters.num_preemptions
    assert len(first.output_token_ids) == len(second.output_token_ids) == 4


def test_blocks_planned_but_never_computed_leave_the_prefix_cache():
    scheduler = make_scheduler(4, 2)
    first, second = make_sequence([1, 2, 3]), make_sequence([5, 6, 7])
    scheduler.add(first)
    scheduler.add(second)
    run_step(scheduler)
    output = scheduler.schedule()
    scheduler.abort(second)
    third = make_sequence([*second.token_ids, 0, 0])
    assert len(scheduler.kv_cache_manager.find_cached_prefix(third).blocks) == 1
    assert len(output.scheduled) == 2


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_finish_in_any_state_releases_everything(state):
    scheduler = make_scheduler(8, 2)
    sequence = make_sequence(5)
    scheduler.add(sequence)
    if state == "running":
        run_step(scheduler)
    scheduler.abort(sequence)
    scheduler.check()
    assert not scheduler.has_unfinished()
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 8
