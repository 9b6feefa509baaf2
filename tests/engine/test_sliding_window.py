"""Blocks behind the window of every layer are given back while their sequence goes on."""

from __future__ import annotations

from schedulers import block_ids, make_scheduler, make_sequence, run_step

from infer.engine.attention import LayerSpec
from infer.engine.kv_cache import KVCacheSpec


def test_window_is_that_of_the_layer_that_looks_furthest():
    windows = [[8, 24, 8], [24, 0], [0], [5]]
    specs = [KVCacheSpec(tuple(LayerSpec(1, 8, 8, each) for each in layers), 4, None) for layers in windows]
    assert [spec.window for spec in specs] == [24, 0, 0, 5]


def test_blocks_that_no_query_sees_any_more_are_given_back():
    scheduler = make_scheduler(9, 4, window=6)
    sequence = make_sequence(11)
    scheduler.add(sequence)
    run_step(scheduler)
    assert block_ids(sequence) == [1, 2, 3]
    # The query at 11 sees 6 to 11: the first block, 0 to 3, is passed. At 13 it sees 8 to 13.
    tables = []
    for _ in range(4):
        run_step(scheduler)
        tables.append(block_ids(sequence))
    assert tables == [[0, 2, 3], [0, 2, 3, 4], [0, 0, 3, 4], [0, 0, 3, 4]]
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 7


def test_nothing_is_given_back_before_the_window_is_full():
    scheduler = make_scheduler(9, 1, window=4)
    scheduler.add(sequence := make_sequence(2))
    tables = []
    for _ in range(4):
        run_step(scheduler)
        tables.append(block_ids(sequence))
    # The query at 3 sees 0 to 3, the one at 4 no more of the first.
    assert tables == [[1, 2], [1, 2, 3], [1, 2, 3, 4], [0, 2, 3, 4, 5]]


def test_sequence_with_a_window_never_holds_more_than_its_window_and_a_chunk():
    scheduler = make_scheduler(30, 2, window=5, max_num_batched_tokens=4)
    sequence = make_sequence(40, max_tokens=8)
    scheduler.add(sequence)
    held = []
    while scheduler.has_unfinished():
        run_step(scheduler)
        held.append(30 - scheduler.kv_cache_manager.pool.num_free_blocks)
    assert max(held) <= (5 + 4) // 2 + 1


def test_fork_shares_what_its_parent_still_holds():
    scheduler = make_scheduler(9, 4, window=6)
    sequence = make_sequence(11)
    scheduler.add(sequence)
    run_step(scheduler)
    run_step(scheduler)
    child = scheduler.fork(sequence, 1)
    assert block_ids(child) == block_ids(sequence) == [0, 2, 3]
    scheduler.check()
    scheduler.abort(sequence)
    scheduler.check()
    scheduler.abort(child)
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 9


def test_blocks_that_right_drafts_filled_are_entered_before_the_window_passes_them():
    scheduler = make_scheduler(20, 1, window=1, max_num_batched_tokens=8)
    sequence = make_sequence([0], max_tokens=8)
    scheduler.add(sequence)
    run_step(scheduler, lambda _: 7)
    for _ in range(3):
        run_step(scheduler, lambda _: 7, propose=lambda _: [7, 7])
    assert not scheduler.has_unfinished()
    other = make_sequence([0, 7, 7, 7, 7])
    assert len(scheduler.kv_cache_manager.find_cached_prefix(other).blocks) == 4
