"""Several sequences of one request: whose blocks they hold, when one is copied, and that none blocks the others."""

from __future__ import annotations

from schedulers import ShadowCache, block_ids, make_scheduler, make_sequence, planned, run_step

from infer.engine.scheduler import Pause
from infer.engine.sequence import SequenceStatus


def start(scheduler, prompt, *, num_branches=1, max_tokens=16):
    """A sequence that has computed its prompt."""
    sequence = make_sequence(prompt, max_tokens=max_tokens)
    sequence.num_branches = num_branches
    scheduler.add(sequence)
    scheduler.update(scheduler.schedule())
    return sequence


def fork(scheduler, sequence, num_children, first_index=1):
    """Forks, each with a token of its own."""
    children = [scheduler.fork(sequence, first_index + number) for number in range(num_children)]
    sequence.num_branches = 1
    for number, each in enumerate((sequence, *children)):
        each.append(number)
    return children


def test_who_writes_first_to_a_shared_block_takes_a_copy_and_the_last_writes_in_place():
    scheduler = make_scheduler(9, 4)
    first = start(scheduler, 6)
    second, third = fork(scheduler, first, 2)
    assert block_ids(first) == block_ids(second) == block_ids(third) == [1, 2]
    scheduler.check()
    output = scheduler.schedule()
    assert [block_ids(each) for each in (first, second, third)] == [[1, 3], [1, 4], [1, 2]]
    assert output.transfers.within == ((2, 3), (2, 4))
    scheduler.update(output)
    scheduler.check()
    for each in (first, second, third):
        each.append(7)
    assert run_step(scheduler).transfers.within == ()


def test_full_blocks_are_never_copied():
    scheduler = make_scheduler(9, 4)
    first = start(scheduler, 8)
    (second,) = fork(scheduler, first, 1)
    output = run_step(scheduler)
    assert output.transfers.within == ()
    assert (block_ids(first), block_ids(second)) == ([1, 2, 3], [1, 2, 4])


def test_what_is_shared_is_given_back_when_the_last_lets_go():
    scheduler = make_scheduler(9, 4)
    first = start(scheduler, 6)
    second, third = fork(scheduler, first, 2)
    scheduler.abort(first)
    scheduler.abort(third)
    scheduler.check()
    assert run_step(scheduler).transfers.within == ()
    assert block_ids(second) == [1, 2]
    scheduler.abort(second)
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 9


def test_copy_for_one_that_gives_way_in_the_same_step_is_not_made():
    # Block 1 is full, 2 is shared by all three; one block is free, and two of them want to write.
    scheduler = make_scheduler(3, 4)
    first = start(scheduler, 6)
    second, third = fork(scheduler, first, 2)
    output = scheduler.schedule()
    assert set(output.preempted) == {third}
    assert output.transfers.within == ((2, 3),)
    assert (block_ids(first), block_ids(second), block_ids(third)) == ([1, 3], [1, 2], [])
    scheduler.update(output)
    scheduler.check()


def test_victim_that_is_about_to_copy_is_swapped_out_from_where_the_copy_comes_from():
    scheduler = make_scheduler(
        4, 4, num_host_blocks=9, preemption_mode="swap", scheduling_policy="priority", enable_prefix_caching=False
    )
    first = make_sequence(6, priority=1)
    scheduler.add(first)
    scheduler.update(scheduler.schedule())
    second, third = fork(scheduler, first, 2)
    urgent = make_sequence(7, priority=0)
    scheduler.add(urgent)
    output = scheduler.schedule()
    # The first and the second were to copy block 2, into 3 and 4, when the urgent one took the place of two of them.
    assert list(output.swapped_out) == [third, second]
    assert (scheduler.counters.num_swaps, scheduler.counters.num_preemptions) == (2, 2)
    assert [source for source, _ in output.transfers.out] == [1, 2, 1, 2]
    assert output.transfers.within == ((2, 3),)
    assert block_ids(urgent) == [2, 4]


def test_copies_come_before_what_the_step_writes():
    scheduler, shadow = make_scheduler(9, 4), ShadowCache(4)
    first = make_sequence(6)
    scheduler.add(first)
    output = scheduler.schedule()
    shadow.execute(output)
    scheduler.update(output)
    fork(scheduler, first, 2)
    for _ in range(5):
        run_step(scheduler, lambda sequence: sequence.branch_index, shadow)


def test_fork_without_a_seat_waits_and_holds_nothing():
    scheduler = make_scheduler(9, 4, max_num_seqs=2)
    first = start(scheduler, 6, max_tokens=3)
    second, third = fork(scheduler, first, 2)
    assert (second.status, third.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    assert block_ids(third) == []
    scheduler.check()
    while scheduler.has_unfinished():
        run_step(scheduler)
    assert [each.output_token_ids for each in (first, second, third)] == [[0, 7, 7], [1, 7, 7], [2, 7, 7]]


def test_request_is_begun_when_there_are_seats_for_all_that_it_will_become():
    scheduler = make_scheduler(40, 4, max_num_seqs=4)
    first = start(scheduler, 6, num_branches=3)
    second = make_sequence(6)
    second.num_branches = 2
    third = make_sequence(6)
    for each in (second, third):
        scheduler.add(each)
    children = fork(scheduler, first, 2)
    assert planned(run_step(scheduler)).keys() == {first, *children}
    scheduler.abort(first)
    assert planned(run_step(scheduler)).keys() == {second, *children}


def test_request_of_more_sequences_than_seats_is_begun_alone():
    scheduler = make_scheduler(40, 4, max_num_seqs=2)
    assert start(scheduler, 6, num_branches=3).status is SequenceStatus.RUNNING


def test_sequences_that_wait_for_one_without_a_seat_give_way_to_it():
    scheduler = make_scheduler(40, 4, max_num_seqs=2)
    first = start(scheduler, 6)
    second, third = fork(scheduler, first, 2)
    scheduler.update(scheduler.schedule())
    first.awaits_choice = second.awaits_choice = True
    output = scheduler.schedule()
    assert planned(output) == {third: 3}, "the first block of four is found in the prefix cache"
    assert (first.status, second.status) == (SequenceStatus.WAITING, SequenceStatus.WAITING)
    scheduler.update(output)
    scheduler.check()


def test_any_number_of_waiting_sequences_whose_tokens_are_being_chosen_is_passed_over():
    scheduler = make_scheduler(40, 4, max_num_seqs=1)
    family = [start(scheduler, 6)]
    family += fork(scheduler, family[0], 9)
    for sequence in family:
        assert planned(run_step(scheduler, lambda _: None)).keys() == {sequence}
    assert [each.status for each in family] == [SequenceStatus.WAITING] * 9 + [SequenceStatus.RUNNING]


def test_fork_behind_blocks_that_right_drafts_filled_enters_them_once():
    scheduler = make_scheduler(20, 2)
    first = make_sequence(3)
    scheduler.add(first)
    run_step(scheduler, lambda _: 7)
    run_step(scheduler, lambda _: 7, propose=lambda _: [7, 7, 7])
    second = scheduler.fork(first, 1)
    second.append(8)
    first.append(9)
    for _ in range(3):
        run_step(scheduler, lambda sequence: sequence.branch_index)


def test_paused_admission_lets_all_sequences_of_what_was_begun_end():
    scheduler = make_scheduler(40, 4, max_num_seqs=2)
    first = start(scheduler, 6, max_tokens=4)
    fork(scheduler, first, 2)
    scheduler.add(make_sequence(5))
    scheduler.pause = Pause.ADMISSION
    for _ in range(20):
        run_step(scheduler)
    assert not scheduler.running
    assert [each.was_begun for each in scheduler.waiting] == [False]


def test_one_that_gives_way_itself_is_not_kept_waiting_by_those_that_await_it():
    scheduler = make_scheduler(3, 2)
    family = [start(scheduler, 2)]
    family += fork(scheduler, family[0], 1)
    run_step(scheduler, lambda each: None if each is family[0] else 7)
    for _ in range(3):
        output = run_step(scheduler, lambda each: None if each is family[0] else 7)
        assert output.num_scheduled_tokens > 0
