"""Each step's decisions, as whole records and whole lines."""

from __future__ import annotations

import pytest
from schedulers import make_scheduler, make_sequence, run_step

from infer.engine.step_record import StepRecord, ranges


def record(scheduler):
    run_step(scheduler)
    return scheduler.last_step


def test_step_tells_who_got_what():
    scheduler = make_scheduler(8, 4)
    assert scheduler.last_step is None
    a, b = make_sequence(6, max_tokens=3), make_sequence(3, max_tokens=1)
    scheduler.add(a)
    scheduler.add(b)
    assert record(scheduler) == StepRecord(
        step=1,
        scheduled=((a.request_id, 6), (b.request_id, 3)),
        preempted=(),
        num_running=2,
        num_waiting=0,
        num_free_blocks=5,
        prefill_tokens=9,
        decode_tokens=0,
        draft_tokens=0,
        accepted_tokens=0,
        recomputed_tokens=0,
        hit_tokens=0,
        given_blocks=(1, 2, 3),
        freed_blocks=(),
        evicted_blocks=(),
    )
    # b had its only token: its block went back after the step before was booked.
    assert record(scheduler) == StepRecord(
        step=2,
        scheduled=((a.request_id, 1),),
        preempted=(),
        num_running=1,
        num_waiting=0,
        num_free_blocks=6,
        prefill_tokens=0,
        decode_tokens=1,
        draft_tokens=0,
        accepted_tokens=0,
        recomputed_tokens=0,
        hit_tokens=0,
        given_blocks=(),
        freed_blocks=(3,),
        evicted_blocks=(),
    )


def test_step_tells_who_gave_way_for_whom_and_what_is_computed_again():
    scheduler = make_scheduler(4, 2, enable_prefix_caching=False, preemption_victim="last")
    first, second = make_sequence(4, max_tokens=3), make_sequence(4, max_tokens=3)
    scheduler.add(first)
    scheduler.add(second)
    run_step(scheduler)
    assert record(scheduler).preempted == ((second.request_id, first.request_id),)
    run_step(scheduler)
    again = record(scheduler)
    assert (again.recomputed_tokens, again.prefill_tokens, again.decode_tokens) == (4, 0, 1)


def test_step_tells_who_was_swapped_out_and_in_and_how_many_blocks_were_copied():
    scheduler = make_scheduler(4, 2, num_host_blocks=4)
    first, second = make_sequence(4, max_tokens=2), make_sequence(4, max_tokens=3)
    scheduler.add(first)
    scheduler.add(second)
    run_step(scheduler)
    out = record(scheduler)
    assert out.preempted == ()
    assert (out.swapped_out, out.swapped_in) == (((second.request_id, first.request_id),), ())
    assert (out.blocks_to_host, out.blocks_from_host) == (2, 0)
    assert f"swapped out {second.request_id}, no room for {first.request_id}; copied 2 to host 0 from host;" in str(out)
    back = record(scheduler)
    assert (back.swapped_out, back.swapped_in) == ((), (second.request_id,))
    assert (back.blocks_to_host, back.blocks_from_host, back.hit_tokens) == (0, 1, 0), "the other was still there"
    assert (back.recomputed_tokens, back.prefill_tokens, back.decode_tokens) == (0, 0, 1)
    assert f"swapped in {second.request_id}; copied 0 to host 1 from host;" in str(back)


def test_hits_of_a_step_are_those_of_all_that_it_begins():
    prompt = list(range(8))
    scheduler = make_scheduler(16, 4)
    scheduler.add(make_sequence(prompt, max_tokens=1))
    run_step(scheduler)
    for last in (20, 21):
        scheduler.add(make_sequence([*prompt, last]))
    assert record(scheduler).hit_tokens == 16


def test_step_tells_of_hits_and_evictions():
    prompt = list(range(8))
    scheduler = make_scheduler(4, 4)
    scheduler.add(make_sequence(prompt, max_tokens=1))
    run_step(scheduler)
    scheduler.add(make_sequence([*prompt, 9], max_tokens=1))
    hit = record(scheduler)
    assert (hit.hit_tokens, hit.prefill_tokens) == (8, 1)
    scheduler.add(make_sequence(16, max_tokens=1))
    assert sorted(record(scheduler).evicted_blocks) == [1, 2]


def test_step_tells_drafts_from_tokens_and_right_ones_from_wrong_ones():
    scheduler = make_scheduler(8, 4)
    sequence = make_sequence(6, max_tokens=9)
    scheduler.add(sequence)
    run_step(scheduler)
    run_step(scheduler, propose=lambda _: [7, 7, 3, 7])
    step = scheduler.last_step
    assert (step.decode_tokens, step.draft_tokens, step.accepted_tokens) == (1, 4, 2)
    assert step.scheduled == ((sequence.request_id, 5),)
    # The wrong ones had begun a third block.
    assert (step.given_blocks, step.freed_blocks, step.num_free_blocks) == ((3,), (), 5)
    assert sequence.output_token_ids == [7, 7, 7, 7]


def test_counters_are_the_sums_of_the_steps():
    scheduler = make_scheduler(6, 2, max_num_batched_tokens=5)
    for length in (7, 3, 5, 4):
        scheduler.add(make_sequence(length, max_tokens=4))
    records = []
    while scheduler.has_unfinished():
        records.append(record(scheduler))
    counters = scheduler.counters
    assert counters.num_preemptions == sum(len(each.preempted) for each in records) > 0
    assert counters.prefill_tokens == sum(each.prefill_tokens for each in records)
    assert counters.decode_tokens == sum(each.decode_tokens for each in records) == 4 * 3
    assert counters.tokens_wasted == sum(each.recomputed_tokens for each in records) > 0
    assert counters.prompt_tokens == 7 + 3 + 5 + 4


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([3, 1, 2], "1-3"), ([1, 2, 4, 7, 8, 9], "1-2,4,7-9")]
)
def test_consecutive_numbers_are_written_together(numbers, text):
    assert ranges(numbers) == text


def test_line_tells_all_of_it():
    step = StepRecord(
        step=7,
        scheduled=((1, 1), (2, 1), (3, 1), (5, 60)),
        preempted=((4, 1), (9, 9)),
        num_running=4,
        num_waiting=2,
        num_free_blocks=11,
        prefill_tokens=50,
        decode_tokens=3,
        draft_tokens=8,
        accepted_tokens=5,
        recomputed_tokens=10,
        hit_tokens=32,
        given_blocks=(4, 5, 6),
        freed_blocks=(2, 9),
        evicted_blocks=(5,),
    )
    assert str(step) == (
        "step 7; running 4 waiting 2; tokens 50 prefill 3 decode 10 again 32 cached; drafts 8, 5 right; one each 1-3; "
        "chunks 5:60; preempted 4, no room for 1; preempted 9, no room for itself; given 4-6; freed 2,9; evicted 5; "
        "free 11"
    )
