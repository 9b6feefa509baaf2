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
