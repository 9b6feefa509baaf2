"""KVCacheManager: what fits, what a sequence need not compute, and what the tiers behind the device are told."""

from __future__ import annotations

import pytest
from schedulers import block_ids, make_scheduler, make_sequence, run_step

from infer.engine.config import EngineConfig
from infer.engine.kv_cache_manager import CachedPrefix, KVCacheManager
from infer.engine.kv_connector import NoTier
from infer.engine.scheduler import Scheduler
from infer.engine.stats import FREE


def admit(manager, prompt):
    """A sequence of `prompt` with the blocks of all its tokens."""
    sequence = make_sequence(prompt)
    prefix = manager.find_cached_prefix(sequence)
    assert manager.allocate_slots(sequence, sequence.num_tokens - prefix.num_tokens, prefix)
    sequence.num_computed_tokens = sequence.num_tokens
    return sequence


@pytest.mark.parametrize(("num_tokens", "fits"), [(16, True), (17, False)])
def test_sequence_alone_may_fill_all_blocks(num_tokens, fits):
    assert KVCacheManager(4, 4, enable_prefix_caching=True).fits_empty_pool(num_tokens) == fits


def test_all_blocks_are_held_where_no_layer_has_a_window():
    manager = KVCacheManager(4, 2, enable_prefix_caching=True)
    sequence = admit(manager, [1, 2, 3, 4, 5])
    sequence.append(6)
    assert manager.allocate_slots(sequence, 1)
    assert block_ids(sequence) == [1, 2, 3]


def test_prefix_that_only_victims_hold_makes_room_and_has_to_be_held_again():
    manager = KVCacheManager(4, 2, enable_prefix_caching=True)
    victim = admit(manager, [1, 2, 3, 4, 5])
    # Its three blocks and the free one are four, of which two are the prefix.
    fitting, too_long = make_sequence([1, 2, 3, 4, 6, 7, 8, 9]), make_sequence([1, 2, 3, 4, 6, 7, 8, 9, 10])
    assert manager.fits_without([victim], fitting, token_budget=100)
    assert not manager.fits_without([victim], too_long, token_budget=100)
    assert manager.fits_without([victim], too_long, token_budget=4)


def test_prefix_that_another_holds_as_well_needs_no_room():
    manager = KVCacheManager(4, 2, enable_prefix_caching=True)
    victim, _ = admit(manager, [1, 2, 3, 4, 5]), admit(manager, [1, 2, 3, 4, 6])
    assert manager.pool.num_free_blocks == 0
    assert manager.fits_without([victim], make_sequence([1, 2, 3, 4, 7]), token_budget=100)
    assert not manager.fits_without([victim], make_sequence([1, 2, 3, 4, 7, 8, 9]), token_budget=100)


def test_hits_and_queries_are_counted_in_tokens():
    manager = KVCacheManager(16, 4, enable_prefix_caching=True)
    for prompt in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7], [1, 2, 3, 4, 8, 9]):
        sequence = make_sequence(prompt)
        manager.count_hits(sequence, manager.find_cached_prefix(sequence))
        admit(manager, prompt)
    assert manager.prefix_cache_queries == 6 + 5 + 6
    assert manager.prefix_cache_hits == {"device": 8}


def test_swapped_sequence_finds_its_copies_behind_what_the_device_holds():
    scheduler = make_scheduler(8, 2, num_host_blocks=8, max_num_batched_tokens=5)
    sequence = make_sequence(9)
    scheduler.add(sequence)
    run_step(scheduler)
    manager = scheduler.kv_cache_manager
    held = list(sequence.block_table)
    assert manager.swap_out(sequence)
    assert manager.find_cached_prefix(sequence) == CachedPrefix(held[:2], 5, ["swap"])


def test_swapped_sequence_goes_on_from_where_another_of_its_tokens_has_come():
    scheduler = make_scheduler(16, 2, num_host_blocks=8, max_num_batched_tokens=3)
    tokens = list(range(9))
    behind, ahead = make_sequence(tokens), make_sequence(tokens)
    scheduler.add(behind)
    run_step(scheduler)
    manager = scheduler.kv_cache_manager
    assert manager.swap_out(behind)
    blocks = admit(manager, tokens).block_table
    assert manager.find_cached_prefix(behind) == CachedPrefix(blocks[:4], 8, [])
    assert manager.find_cached_prefix(ahead) == CachedPrefix(blocks[:4], 8, [])


def test_sequence_that_has_computed_nothing_is_not_swapped_out():
    scheduler = make_scheduler(8, 2, num_host_blocks=8)
    sequence = make_sequence(3)
    scheduler.add(sequence)
    scheduler.schedule()
    assert not scheduler.kv_cache_manager.swap_out(sequence)
    assert block_ids(sequence) == [1, 2]
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 6


def test_nothing_is_kept_where_prefixes_are_not_cached():
    manager = KVCacheManager(4, 2, enable_prefix_caching=False)
    manager.free(admit(manager, [1, 2, 3, 4, 5]))
    assert manager.pool.block_states() == bytes([FREE] * 4)
    assert manager.find_cached_prefix(make_sequence([1, 2, 3, 4, 6])) == CachedPrefix()


class Notes(NoTier):
    """A tier that keeps a note of what it is offered."""

    def __init__(self):
        self.saved = []

    def save(self, blocks):
        self.saved.append([(block_id, block_hash.token_ids) for block_id, block_hash in blocks])


def test_tiers_are_offered_each_block_of_a_prompt_with_the_step_that_fills_it():
    notes = Notes()
    manager = KVCacheManager(8, 2, enable_prefix_caching=True, connector=notes)
    scheduler = Scheduler(EngineConfig(block_size=2, max_num_batched_tokens=3), manager)
    scheduler.add(make_sequence([1, 2, 3, 4, 5, 6, 7], max_tokens=3))
    while scheduler.has_unfinished():
        run_step(scheduler)
    # The last token of the prompt shares its block with the first of the answer.
    assert notes.saved == [[(1, (1, 2))], [(2, (3, 4)), (3, (5, 6))], [], [], []]
