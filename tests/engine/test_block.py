"""FreeBlockQueue: who is in it, in which order, and what its misuse says."""

from __future__ import annotations

import pytest

from infer.engine.block import Block, FreeBlockQueue


def make_queue(num_blocks):
    blocks = [Block(block_id) for block_id in range(num_blocks)]
    return blocks, FreeBlockQueue(blocks)


def ids(queue):
    return [block.block_id for block in queue]


def test_block_begins_unheld_and_in_no_queue():
    block = Block(3)
    assert (block.ref_cnt, block.block_hash, block.prev_free, block.next_free) == (0, None, None, None)


def test_queue_gives_blocks_out_in_the_order_in_which_they_came():
    blocks, queue = make_queue(3)
    assert [queue.popleft(), queue.popleft()] == blocks[:2]
    queue.append(blocks[0])
    assert (ids(queue), len(queue)) == ([2, 0], 2)


@pytest.mark.parametrize(("index", "left"), [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])], ids=["first", "middle", "last"])
def test_block_leaves_the_queue_from_wherever_it_stands(index, left):
    blocks, queue = make_queue(3)
    queue.remove(blocks[index])
    assert (ids(queue), len(queue)) == (left, 2)
    queue.append(blocks[index])
    assert ids(queue) == [*left, index]


def test_empty_queue_takes_blocks_again():
    blocks, queue = make_queue(1)
    assert queue.popleft() is blocks[0]
    assert (ids(queue), len(queue)) == ([], 0)
    queue.append(blocks[0])
    assert ids(queue) == [0]


def test_misuse_of_the_queue_is_caught():
    blocks, queue = make_queue(1)
    with pytest.raises(AssertionError, match=r"^already in the free queue: Block\(0, ref_cnt=0, hashed=False\)$"):
        queue.append(blocks[0])
    queue.popleft()
    with pytest.raises(AssertionError, match=r"^not in the free queue: Block\(0, ref_cnt=0, hashed=False\)$"):
        queue.remove(blocks[0])
    with pytest.raises(AssertionError, match=r"^no free block$"):
        queue.popleft()
