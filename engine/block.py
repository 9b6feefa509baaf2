"""A block of the KV cache, and the list that free ones wait in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from infer.engine.block_hash import BlockHash


class Block:
    """`block_size` token slots of every layer. Changed by the BlockPool alone."""

    __slots__ = ("block_hash", "block_id", "next_free", "prev_free", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: BlockHash | None = None
        self.prev_free: Block | None = None
        self.next_free: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_cnt={self.ref_cnt}, hashed={self.block_hash is not None})"


class FreeBlockQueue:
    """Free blocks, the next to be given out first. A doubly linked list through the blocks themselves, because a
    prefix hit takes a block out of the middle:

        head <-> least recently freed <-> ... <-> most recently freed <-> tail
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._head = Block(-1)
        self._tail = Block(-2)
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self._len = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def append(self, block: Block) -> None:
        last = self._tail.prev_free
        assert last is not None
        assert block.next_free is None, f"already in the free queue: {block}"
        last.next_free, block.prev_free = block, last
        block.next_free, self._tail.prev_free = self._tail, block
        self._len += 1

    def remove(self, block: Block) -> None:
        before, after = block.prev_free, block.next_free
        assert before is not None, f"not in the free queue: {block}"
        assert after is not None, f"not in the free queue: {block}"
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self._len -= 1

    def popleft(self) -> Block:
        block = self._head.next_free
        assert block is not None
        assert block is not self._tail, "no free block"
        self.remove(block)
        return block
