"""A scheduler that forgets a step which failed: nothing of its plan is left, and all begin again."""

from __future__ import annotations

from schedulers import ShadowCache, choose, make_scheduler, make_sequence, run_step

from infer.engine.config import EngineConfig
from infer.engine.ngram_proposer import NgramProposer
from infer.engine.sequence import SequenceStatus
from infer.engine.speculative import make_speculation


def finish_all(scheduler, block_size, window=0):
    """With a cache that holds nothing at first: whoever takes a block for computed is found out."""
    shadow = ShadowCache(block_size, window)
    while scheduler.has_unfinished():
        run_step(scheduler, shadow=shadow)


def test_plan_that_failed_leaves_no_copy_to_be_made():
    scheduler = make_scheduler(16, 4)
    parent = make_sequence(6, max_tokens=6)
    scheduler.add(parent)
    run_step(scheduler)
    child = scheduler.fork(parent, 1)
    choose(scheduler, child, 8)
    choose(scheduler, parent, 7)
    # Planned, and never carried out.
    scheduler.kv_cache_manager.allocate_slots(parent, 1)
    assert scheduler.kv_cache_manager._copies
    scheduler.reset([child, parent])
    scheduler.check()
    assert scheduler.schedule().transfers.within == ()


def test_sequences_wait_in_the_order_of_their_arrival_and_hold_nothing():
    scheduler = make_scheduler(6, 2, num_host_blocks=8, preemption_mode="swap")
    sequences = [make_sequence(4, max_tokens=6) for _ in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    while not any(sequence.status is SequenceStatus.SWAPPED for sequence in sequences):
        run_step(scheduler)
    scheduler.schedule()
    scheduler.reset(reversed(sequences))
    scheduler.check()
    assert list(scheduler.waiting) == sequences
    assert {sequence.status for sequence in sequences} == {SequenceStatus.WAITING}
    finish_all(scheduler, 2)


def test_blocks_behind_a_window_are_computed_again():
    scheduler = make_scheduler(30, 2, window=4, max_num_batched_tokens=4)
    sequences = [make_sequence(9, max_tokens=5) for _ in range(2)]
    for sequence in sequences:
        scheduler.add(sequence)
    while not all(sequence.num_passed_blocks for sequence in sequences):
        run_step(scheduler)
    scheduler.schedule()
    scheduler.reset(sequences)
    scheduler.check()
    finish_all(scheduler, 2, window=4)


def test_prefix_that_was_evicted_by_a_failed_plan_is_not_kept():
    scheduler = make_scheduler(3, 2, num_host_blocks=8, enable_host_cache=True)
    first = make_sequence(5, max_tokens=1)
    scheduler.add(first)
    run_step(scheduler)
    second = make_sequence(5, max_tokens=1)
    scheduler.add(second)
    scheduler.kv_cache_manager.allocate_slots(second, 5)
    assert scheduler.kv_cache_manager.pool.evicted
    scheduler.reset([second])
    assert not scheduler.kv_cache_manager.pool.evicted
    assert scheduler.schedule().transfers.out == ()


def test_scheduler_without_its_host_memory_goes_on():
    scheduler = make_scheduler(6, 2, num_host_blocks=8, enable_host_cache=True, preemption_mode="swap")
    sequences = [make_sequence(4, max_tokens=6) for _ in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    while not any(sequence.status is SequenceStatus.SWAPPED for sequence in sequences):
        run_step(scheduler)
    scheduler.reset(sequences)
    scheduler.kv_cache_manager.drop_tiers()
    scheduler.check()
    finish_all(scheduler, 2)
    assert all(sequence.status is SequenceStatus.FINISHED for sequence in sequences)


def test_drafts_of_a_failed_step_are_forgotten():
    scheduler = make_scheduler(16, 4)
    sequence = make_sequence([5, 6, 7, 5, 6, 7, 5, 6], max_tokens=8)
    scheduler.add(sequence)
    run_step(scheduler)
    speculation = make_speculation(EngineConfig(speculative="always"), NgramProposer(2, 4))
    speculation.propose(scheduler.running)
    assert speculation._proposed
    assert speculation._proposer._texts
    scheduler.reset([sequence])
    speculation.reset()
    assert (speculation._proposed, speculation._proposer._texts, sequence.draft_token_ids) == ({}, {}, [])
