"""The host tier: whose blocks are copied where, what is shared, and what gives way when it is full."""

from __future__ import annotations

import pytest
from schedulers import ShadowCache, block_ids, make_scheduler, make_sequence, run_step

from infer.engine.cost_model import CostModel
from infer.engine.sequence import SequenceStatus


def host_tier(scheduler):
    return scheduler.kv_cache_manager._swap_space


def add_all(scheduler, *sequences):
    for sequence in sequences:
        scheduler.add(sequence)


def run_to_end(scheduler, shadow):
    while scheduler.has_unfinished():
        assert run_step(scheduler, lambda sequence: sequence.num_tokens, shadow).scheduled


def swapped_out(scheduler, shadow):
    """A scheduler of four blocks of two tokens whose second sequence has just given way."""
    first, second = make_sequence(4, max_tokens=3), make_sequence(4, max_tokens=3)
    add_all(scheduler, first, second)
    run_step(scheduler, shadow=shadow)
    output = run_step(scheduler, shadow=shadow)
    return first, second, output


@pytest.mark.parametrize("has_prefixes", [True, False])
def test_victim_goes_on_where_it_was_and_computes_nothing_again(has_prefixes):
    scheduler = make_scheduler(4, 2, num_host_blocks=8, enable_prefix_caching=has_prefixes)
    shadow = ShadowCache(2)
    _, second, output = swapped_out(scheduler, shadow)
    assert second.status is SequenceStatus.SWAPPED
    assert output.transfers.out == ((3, 1), (4, 2))
    assert second.status is SequenceStatus.SWAPPED
    run_to_end(scheduler, shadow)
    assert scheduler.counters.num_swaps == scheduler.counters.num_preemptions > 0
    assert scheduler.counters.tokens_wasted == 0


def test_blocks_that_the_device_still_holds_are_not_copied_back():
    scheduler = make_scheduler(4, 2, num_host_blocks=8)
    shadow = ShadowCache(2)
    first, second, _ = swapped_out(scheduler, shadow)
    scheduler.abort(first)
    output = run_step(scheduler, shadow=shadow)
    assert output.swapped_in == (second,)
    # The tail had been given to the first, the head had not.
    assert output.transfers.back == ((2, block_ids(second)[1]),)


def test_victim_whose_blocks_find_no_room_computes_them_again():
    scheduler = make_scheduler(4, 2, num_host_blocks=1, preemption_mode="swap")
    shadow = ShadowCache(2)
    _, second, output = swapped_out(scheduler, shadow)
    assert second.status is SequenceStatus.WAITING
    assert output.transfers.out == ()
    run_to_end(scheduler, shadow)
    assert scheduler.counters.num_preemptions > 0 == scheduler.counters.num_swaps


def test_block_that_is_half_computed_is_kept_for_its_owner_alone():
    scheduler = make_scheduler(8, 2, num_host_blocks=8, max_num_batched_tokens=3)
    sequence = make_sequence(7)
    scheduler.add(sequence)
    run_step(scheduler)
    assert scheduler.kv_cache_manager.swap_out(sequence)
    assert len(sequence.host_blocks) == 2
    assert host_tier(scheduler).lookup(sequence.block_hashes) == ["host"]


def test_recompute_copies_nothing():
    scheduler = make_scheduler(4, 2, num_host_blocks=8, preemption_mode="recompute")
    _, second, output = swapped_out(scheduler, ShadowCache(2))
    assert (second.status, output.transfers.out) == (SequenceStatus.WAITING, ())


@pytest.mark.parametrize(
    ("bus_bandwidth", "status"), [(2.1, SequenceStatus.SWAPPED), (2.0, SequenceStatus.WAITING)], ids=["less", "as much"]
)
def test_victim_is_copied_where_that_costs_less_than_to_compute_it_again(bus_bandwidth, status):
    # A second for each of the four tokens that are computed again, against eight tokens that go out and come back.
    costs = CostModel(
        num_parameters=1,
        bytes_per_parameter=1,
        bytes_per_cached_token=1,
        flops=2,
        bandwidth=1,
        bus_bandwidth=bus_bandwidth,
        seconds_per_step=0,
    )
    scheduler = make_scheduler(4, 2, num_host_blocks=8, preemption_mode="auto", cost_model=costs)
    _, second, _ = swapped_out(scheduler, ShadowCache(2))
    assert second.status is status
    scheduler.check()


def test_prefix_of_two_swapped_sequences_is_copied_once():
    scheduler = make_scheduler(8, 2, num_host_blocks=16)
    shadow = ShadowCache(2)
    first = make_sequence(2, max_tokens=14)
    sharers = [make_sequence([1, 2, 3, 4, 5, 10 + number], max_tokens=8) for number in range(2)]
    add_all(scheduler, first, *sharers)
    num_copied = 0
    for _ in range(14):
        num_copied += len(run_step(scheduler, lambda sequence: sequence.num_tokens, shadow).transfers.out)
        if all(each.status is SequenceStatus.SWAPPED for each in sharers):
            break
    held = [block.block_id for each in sharers for block in each.host_blocks]
    assert len(held) > len(set(held)) == num_copied
    run_to_end(scheduler, shadow)


def test_swapped_sequence_goes_before_those_that_wait():
    scheduler = make_scheduler(4, 2, num_host_blocks=8)
    _, second, _ = swapped_out(scheduler, ShadowCache(2))
    scheduler.add(make_sequence(1))
    assert next(iter(scheduler.waiting)) is second


def test_abort_of_a_swapped_sequence_gives_its_copies_back():
    scheduler = make_scheduler(4, 2, num_host_blocks=8)
    first, second, _ = swapped_out(scheduler, ShadowCache(2))
    scheduler.abort(second)
    scheduler.abort(first)
    scheduler.check()
    assert host_tier(scheduler).pool.num_free_blocks == 8


def test_evicted_prefix_is_loaded_from_host_memory_instead_of_computed():
    scheduler = make_scheduler(4, 2, num_host_blocks=8, enable_host_cache=True)
    shadow = ShadowCache(2)
    prompt = [1, 2, 3, 4, 5]
    for tokens in (prompt, 8):
        scheduler.add(make_sequence(tokens, max_tokens=1))
        run_step(scheduler, shadow=shadow)
    again = make_sequence(prompt, max_tokens=1)
    scheduler.add(again)
    output = run_step(scheduler, shadow=shadow)
    assert (output.num_scheduled_tokens, again.num_cached_tokens) == (1, 4)
    assert scheduler.kv_cache_manager.prefix_cache_hits == {"host": 4}


def test_prefix_is_not_kept_on_the_host_unless_asked_for():
    scheduler = make_scheduler(4, 2, num_host_blocks=8)
    for tokens in ([1, 2, 3, 4, 5], 8, [1, 2, 3, 4, 5]):
        scheduler.add(make_sequence(tokens, max_tokens=1))
        assert run_step(scheduler).num_scheduled_tokens in (5, 8)


def test_least_recently_used_prefix_gives_way():
    scheduler = make_scheduler(2, 2, num_host_blocks=2, enable_host_cache=True)
    shadow = ShadowCache(2)
    a, b, c = [1, 2, 0], [3, 4, 0], [5, 6, 0]
    # On the device each displaces the one before it. In host memory c then takes the place of a: b was just used.
    expected = [(a, 0), (b, 0), (a, 2), (c, 0), (b, 2), (a, 0)]
    for prompt, num_cached in expected:
        sequence = make_sequence(prompt, max_tokens=1)
        scheduler.add(sequence)
        run_step(scheduler, shadow=shadow)
        assert sequence.num_cached_tokens == num_cached, prompt


def test_swapped_copies_are_never_displaced_by_prefixes():
    scheduler = make_scheduler(4, 2, num_host_blocks=2, enable_host_cache=True)
    shadow = ShadowCache(2)
    first, second, _ = swapped_out(scheduler, shadow)
    copies = list(second.host_blocks)
    run_step(scheduler, shadow=shadow)
    assert second.host_blocks in (copies, [])
    run_to_end(scheduler, shadow)
    assert scheduler.counters.tokens_wasted == 0
    assert first.status is SequenceStatus.FINISHED
