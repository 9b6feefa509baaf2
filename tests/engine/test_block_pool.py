"""BlockPool: exact block ids, exact eviction order, and what a lookup may and may not find."""

from __future__ import annotations

import pytest

from infer.engine.block_hash import BlockHash, hash_block, hash_full_blocks
from infer.engine.block_pool import BlockPool
from infer.engine.stats import CACHED, FREE, SHARED, USED


def ids(blocks):
    return [block.block_id for block in blocks]


def test_pool_gives_blocks_out_in_order_and_never_the_null_block():
    pool = BlockPool(4)
    assert ids(pool.allocate(3)) == [1, 2, 3]
    assert ids(pool.allocate(1)) == [4]
    assert pool.num_free_blocks == 0
    pool.check()


def test_freed_blocks_are_given_out_least_recently_freed_first():
    pool = BlockPool(4)
    a, b, c, d = pool.allocate(4)
    pool.free([c, a])
    pool.free([d, b])
    assert ids(pool.allocate(4)) == [3, 1, 4, 2]
    pool.check()


def test_cached_block_is_found_until_it_is_given_out_again():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    key = hash_block(None, [1, 2])
    pool.cache(block, key)
    pool.free([block])
    assert pool.lookup(hash_block(None, [1, 2])) is block
    pool.allocate(1)
    assert pool.lookup(key) is block, "the other block was free longer"
    pool.allocate(1)
    assert pool.lookup(key) is None
    pool.check()


def test_touch_takes_a_block_out_of_the_middle_of_the_free_queue():
    pool = BlockPool(3)
    a, b, c = pool.allocate(3)
    pool.free([a, b, c])
    pool.touch([b])
    assert ids(pool.allocate(2)) == [1, 3]
    pool.check()


def test_reset_pool_holds_and_knows_nothing_and_tells_what_was_held():
    pool = BlockPool(4)
    a, b, c = pool.allocate(3)
    pool.cache(a, hash_block(None, [1]))
    pool.touch([b])
    pool.cache(c, hash_block(None, [2]))
    pool.free([c])
    pool.allocate(2)
    assert pool.evicted
    pool.reset()
    pool.check()
    events = pool.take_events()
    assert (events.given, events.freed, events.evicted) == ([1, 2, 3, 4, 3], [3, 1, 2, 3, 4], {})
    assert pool.lookup(hash_block(None, [1])) is None
    assert pool.block_states() == bytes([FREE] * 4)
    assert ids(pool.allocate(4)) == [1, 2, 3, 4]


def test_block_states_follow_every_operation():
    pool = BlockPool(3)
    a, b = pool.allocate(2)
    pool.cache(a, hash_block(None, [1]))
    pool.touch([a])
    assert pool.block_states() == bytes([SHARED, USED, FREE])
    pool.free([a, b])
    assert pool.block_states() == bytes([USED, FREE, FREE])
    pool.free([a])
    assert pool.block_states() == bytes([CACHED, FREE, FREE])
    pool.check()


def test_block_that_three_hold_is_still_shared_when_one_lets_go():
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.touch(blocks)
    pool.touch(blocks)
    pool.free(blocks)
    assert pool.block_states() == bytes([SHARED])
    pool.check()


def test_events_tell_in_order_what_was_given_freed_and_evicted():
    pool = BlockPool(3)
    a, b, c = pool.allocate(3)
    first, second = hash_block(None, [1]), hash_block(None, [2])
    pool.cache(a, first)
    pool.cache(b, second)
    pool.touch([c])
    pool.free([b, c, a])
    pool.allocate(2)
    assert pool.evicted == {2: second, 1: first}
    events = pool.take_events()
    assert (events.given, events.freed) == ([1, 2, 3, 2, 1], [2, 1])
    assert list(events.evicted.items()) == [(2, second), (1, first)]
    nothing = pool.take_events()
    assert (nothing.given, nothing.freed, nothing.evicted) == ([], [], {})


def test_double_free_is_caught():
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="double free"):
        pool.free(blocks)


def test_lookup_compares_tokens_when_digests_collide():
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    first = BlockHash(b"same", None, (1, 2))
    pool.cache(blocks[0], first)
    pool.cache(blocks[1], BlockHash(b"same", first, (3, 4)))
    pool.cache(blocks[2], BlockHash(b"same", None, (3, 4)))
    other_parent = BlockHash(b"same", None, (9, 9))
    assert pool.lookup(BlockHash(b"same", other_parent, (3, 4))) is None
    assert pool.lookup(BlockHash(b"same", BlockHash(b"same", None, (1, 2)), (3, 4))) is blocks[1]
    assert pool.lookup(BlockHash(b"same", None, (3, 4))) is blocks[2]
    assert pool.lookup(BlockHash(b"same", None, (5, 6))) is None


def test_block_is_found_when_another_of_the_same_content_has_been_evicted():
    pool = BlockPool(2)
    key = hash_block(None, [1, 2])
    a, b = pool.allocate(2)
    pool.cache(a, key)
    pool.cache(b, key)
    pool.free([a])
    pool.allocate(1)
    assert pool.lookup(key) is b
    pool.check()


def give_out_the_null_block(pool):
    pool.null_block.ref_cnt = 1


def queue_the_null_block(pool):
    pool.null_block.next_free = pool.null_block


def hold_a_block_twice(pool):
    (block,) = pool.allocate(1)
    block.ref_cnt = 2


def hold_a_free_block(pool):
    blocks = pool.allocate(1)
    pool.free(blocks)
    blocks[0].ref_cnt = 1


def forget_a_hash(pool):
    (block,) = pool.allocate(1)
    pool.cache(block, hash_block(None, [1]))
    block.block_hash = None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (give_out_the_null_block, "^the null block was given out$"),
        (queue_the_null_block, "^the null block is in the free queue$"),
        (hold_a_block_twice, r"Block\(1, ref_cnt=2, hashed=False\)"),
        (hold_a_free_block, r"\(2, 1, 2\)"),
        (forget_a_hash, "^$"),
    ],
)
def test_check_finds_what_was_done_behind_the_pools_back(damage, message):
    pool = BlockPool(2)
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError, match=message):
        pool.check()


def test_digest_depends_on_tokens_and_on_the_parent():
    parent = hash_block(None, [1, 2])
    digests = {hash_block(None, [3, 4]).digest, hash_block(parent, [3, 4]).digest, hash_block(None, [4, 3]).digest}
    assert len(digests) == 3
    assert hash_block(hash_block(None, [1, 2]), [3, 4]).is_same_as(hash_block(parent, [3, 4]))


def test_only_full_blocks_are_hashed_and_each_once():
    known = []
    tokens = [1, 2, 3, 4, 5]
    hash_full_blocks(known, tokens, 2)
    first = list(known)
    tokens.append(6)
    hash_full_blocks(known, tokens, 2)
    assert [key.token_ids for key in known] == [(1, 2), (3, 4), (5, 6)]
    assert known[:2] == first
    assert known[2].parent is known[1]
