"""Drafts in the plan: they take what is left, and what of them is wrong leaves nothing behind."""

from __future__ import annotations

import pytest
from schedulers import ShadowCache, block_ids, make_scheduler, make_sequence, planned, run_step

RIGHT = [7, 7, 7, 7]


def always(drafts):
    return lambda sequence: list(drafts)


def start(scheduler, *sequences):
    """All prompts computed, each with its first token."""
    for sequence in sequences:
        scheduler.add(sequence)
    run_step(scheduler)
    assert all(sequence.num_computed_tokens == sequence.num_prompt_tokens for sequence in sequences)


@pytest.mark.parametrize(
    ("drafts", "num_tokens", "num_computed"),
    [([], 5, 4), ([7, 7, 7], 8, 7), ([7, 3, 7], 6, 5), ([3, 7, 7], 5, 4)],
    ids=["none", "all right", "one right", "none right"],
)
def test_step_advances_by_the_drafts_that_were_right_and_one_token(drafts, num_tokens, num_computed):
    scheduler = make_scheduler(16, 2)
    sequence = make_sequence(3)
    start(scheduler, sequence)
    run_step(scheduler, propose=always(drafts))
    assert (sequence.num_tokens, sequence.num_computed_tokens) == (num_tokens, num_computed)
    assert len(sequence.block_table) == -(-num_computed // 2)
    assert sequence.draft_token_ids == []


def test_drafts_get_what_tokens_leave_of_the_budget():
    scheduler = make_scheduler(32, 4, max_num_batched_tokens=8)
    first, second = make_sequence(2), make_sequence(2)
    start(scheduler, first, second)
    third = make_sequence(4)
    scheduler.add(third)
    assert planned(run_step(scheduler, propose=always(RIGHT))) == {first: 3, second: 1, third: 4}
    assert planned(run_step(scheduler, propose=always(RIGHT))) == {first: 5, second: 2, third: 1}


def test_a_waiting_prompt_leaves_drafts_nothing():
    scheduler = make_scheduler(32, 4, max_num_batched_tokens=8)
    first, long = make_sequence(2), make_sequence(30)
    start(scheduler, first)
    scheduler.add(long)
    assert planned(run_step(scheduler, propose=always(RIGHT))) == {first: 1, long: 7}


def test_no_more_than_max_num_draft_tokens_are_in_a_step():
    scheduler = make_scheduler(32, 4, max_num_draft_tokens=5)
    first, second = make_sequence(2), make_sequence(2)
    start(scheduler, first, second)
    assert planned(run_step(scheduler, propose=always(RIGHT))) == {first: 5, second: 2}


def test_draft_never_preempts_and_fills_only_free_blocks():
    scheduler = make_scheduler(5, 2, enable_prefix_caching=False)
    first, second = make_sequence(3, max_tokens=5), make_sequence(3, max_tokens=5)
    start(scheduler, first, second)
    output = run_step(scheduler, propose=always(RIGHT))
    # Each token ends its sequence's second block; the fifth block is free, and the first sequence's drafts fill it.
    assert planned(output) == {first: 3, second: 1}
    assert not output.preempted
    assert scheduler.counters.num_preemptions == 0


def test_drafts_of_a_preempted_sequence_are_dropped():
    scheduler = make_scheduler(4, 2, enable_prefix_caching=False)
    first, second = make_sequence(4, max_tokens=3), make_sequence(4, max_tokens=3)
    start(scheduler, first, second)
    output = run_step(scheduler, propose=always(RIGHT))
    assert list(output.preempted) == [second]
    assert planned(output) == {first: 2}, "one token and the one draft that the answer has room for"
    assert second.draft_token_ids == []
    assert second.num_tokens_with_spec == second.num_tokens


def test_drafts_of_a_prompt_that_is_not_computed_yet_are_dropped():
    scheduler = make_scheduler(16, 4, max_num_batched_tokens=4)
    sequence = make_sequence(9)
    scheduler.add(sequence)
    run_step(scheduler)
    assert planned(run_step(scheduler, propose=always(RIGHT))) == {sequence: 4}
    assert sequence.draft_token_ids == []


def test_plan_leaves_no_drafts_to_those_that_it_does_not_take_to_their_last_token():
    scheduler = make_scheduler(16, 4, max_num_batched_tokens=4, scheduling_policy="priority")
    unserved, partial = make_sequence(2, priority=1), make_sequence(20, priority=0)
    scheduler.add(unserved)
    run_step(scheduler)
    scheduler.add(partial)
    run_step(scheduler)
    for sequence in (unserved, partial):
        sequence.draft_token_ids = [7, 7]
    assert planned(scheduler.schedule()) == {partial: 4}
    assert (unserved.draft_token_ids, partial.draft_token_ids) == ([], [])


def test_drafts_do_not_outgrow_the_answer():
    scheduler = make_scheduler(16, 4)
    sequence = make_sequence(3, max_tokens=4)
    start(scheduler, sequence)
    # Three tokens are left: two drafts and the one behind them.
    assert planned(run_step(scheduler, propose=always(RIGHT))) == {sequence: 3}
    assert sequence.output_token_ids == [7, 7, 7, 7]
    assert not scheduler.has_unfinished()


def test_block_with_a_wrong_draft_is_never_found_in_the_prefix_cache():
    scheduler = make_scheduler(16, 2)
    sequence = make_sequence([1, 2, 3])
    start(scheduler, sequence)
    shadow_prompt = [1, 2, 3, 7, 9, 9, 9, 9]
    run_step(scheduler, sample=lambda _: 7, propose=always([9, 9, 9]))
    other = make_sequence(shadow_prompt)
    assert len(scheduler.kv_cache_manager.find_cached_prefix(other).blocks) == 2
    assert sequence.token_ids == [1, 2, 3, 7, 7]


def test_block_filled_with_right_drafts_enters_the_prefix_cache_with_the_next_step():
    scheduler = make_scheduler(16, 2)
    sequence = make_sequence([1, 2, 3])
    start(scheduler, sequence)
    run_step(scheduler, propose=always(RIGHT))
    run_step(scheduler)
    other = make_sequence([*sequence.token_ids, 5, 5])
    hits = scheduler.kv_cache_manager.find_cached_prefix(other).blocks
    assert [block.block_id for block in hits] == block_ids(sequence)[: sequence.num_computed_tokens // 2]


def test_wrong_drafts_are_written_over_before_they_are_read():
    scheduler = make_scheduler(16, 4)
    shadow = ShadowCache(4)
    for _ in range(3):
        scheduler.add(make_sequence(5, max_tokens=12))
    number = 0
    while scheduler.has_unfinished():
        number += 1
        run_step(scheduler, shadow=shadow, propose=always([7] * (number % 4) + [3] * (number % 3)))
    assert scheduler.counters.accepted_tokens > 0
    assert scheduler.counters.draft_tokens > scheduler.counters.accepted_tokens
