"""BlockPool: which blocks are free, which are held, and which still hold a prefix somebody may ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infer.engine.block import Block, FreeBlockQueue
from infer.engine.stats import CACHED, FREE, SHARED, USED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from infer.engine.block_hash import BlockHash

NULL_BLOCK_ID = 0


@dataclass(slots=True)
class BlockEvents:
    """Ids of blocks, in the order of what happened to them."""

    given: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    """Those that nobody holds any more."""
    evicted: dict[int, BlockHash] = field(default_factory=dict)
    """Given, although they held a prefix: which."""


class BlockPool:
    """A fixed number of blocks. Block 0 is the null block: never given out, it pads block tables.

        allocate()          touch() / free()                        eviction
        FREE ------> USED <-------------------> SHARED     CACHED ----------> USED
                      |  free(): hashed                      ^
                      +--------------------------------------+

    A freed block keeps its hash until it is given out again, so eviction is least recently freed first.
    """

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` usable blocks, the null block not counted."""
        self.num_blocks = num_blocks
        self._blocks = [Block(block_id) for block_id in range(num_blocks + 1)]
        self._free = FreeBlockQueue(self._blocks[1:])
        self._cached: dict[bytes, list[Block]] = {}
        self._states = bytearray(num_blocks + 1)
        self._events = BlockEvents()

    def reset(self) -> None:
        """Begin anew, whatever state it is in: nothing is held, and nothing is known of what any block holds.

        What was evicted was never written over, and is forgotten likewise.
        """
        freed = [block.block_id for block in self._blocks if block.ref_cnt > 0]
        self._events = BlockEvents(self._events.given, [*self._events.freed, *freed])
        for block in self._blocks:
            block.ref_cnt, block.block_hash = 0, None
            block.prev_free = block.next_free = None
        self._free = FreeBlockQueue(self._blocks[1:])
        self._cached.clear()
        self._states = bytearray(self.num_blocks + 1)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `allocate` can give out, those that hold a cached prefix included."""
        return len(self._free)

    @property
    def null_block(self) -> Block:
        """Stands in a table where a block has been given back."""
        return self._blocks[NULL_BLOCK_ID]

    def block_states(self) -> bytes:
        """One byte a usable block, by block id: FREE, CACHED, USED or SHARED."""
        return bytes(memoryview(self._states)[1:])

    def allocate(self, num_blocks: int) -> list[Block]:
        """Take blocks out of the free queue, forgetting what they cached. The caller knows that there are enough."""
        assert num_blocks <= len(self._free), f"{num_blocks} blocks asked for, {len(self._free)} free"
        blocks = [self._free.popleft() for _ in range(num_blocks)]
        for block in blocks:
            if block.block_hash is not None:
                self._events.evicted[block.block_id] = block.block_hash
                self.uncache(block)
            block.ref_cnt = 1
            self._events.given.append(block.block_id)
            self._states[block.block_id] = USED
        return blocks

    def touch(self, blocks: Iterable[Block]) -> None:
        """Take one more reference to each block; a free one leaves the free queue with its content."""
        for block in blocks:
            if block.ref_cnt == 0:
                self._free.remove(block)
            block.ref_cnt += 1
            self._states[block.block_id] = USED if block.ref_cnt == 1 else SHARED

    def free(self, blocks: Iterable[Block]) -> None:
        """Give one reference to each block back. The first given back is the first to be evicted."""
        for block in blocks:
            assert block.ref_cnt > 0, f"double free: {block}"
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self._free.append(block)
                self._events.freed.append(block.block_id)
                self._states[block.block_id] = FREE if block.block_hash is None else CACHED
            else:
                self._states[block.block_id] = USED if block.ref_cnt == 1 else SHARED

    def cache(self, block: Block, block_hash: BlockHash) -> None:
        """Let `block` be found by what it holds, or will hold when the step being planned is done."""
        assert block.block_hash is None, f"already cached: {block}"
        block.block_hash = block_hash
        self._cached.setdefault(block_hash.digest, []).append(block)

    def uncache(self, block: Block) -> None:
        """Forget what `block` holds, where anything is known of it."""
        if block.block_hash is None:
            return
        candidates = self._cached[block.block_hash.digest]
        candidates.remove(block)
        if not candidates:
            del self._cached[block.block_hash.digest]
        block.block_hash = None

    def lookup(self, block_hash: BlockHash) -> Block | None:
        """A block that holds exactly the tokens `block_hash` stands for, whoever else may have its digest."""
        for block in self._cached.get(block_hash.digest, ()):
            assert block.block_hash is not None, block
            if block.block_hash.is_same_as(block_hash):
                return block
        return None

    @property
    def evicted(self) -> Mapping[int, BlockHash]:
        """What was evicted since `take_events` was last called, by the block that held it."""
        return self._events.evicted

    def take_events(self) -> BlockEvents:
        """What happened since this was last called."""
        events, self._events = self._events, BlockEvents()
        return events

    def check(self) -> None:
        """Verify every invariant of the pool; for tests, it walks all blocks."""
        free = list(self._free)
        assert len(free) == len(self._free) == len({block.block_id for block in free})
        held = [block for block in self._blocks[1:] if block.ref_cnt > 0]
        assert len(free) + len(held) == self.num_blocks, (len(free), len(held), self.num_blocks)
        assert all(block.ref_cnt == 0 for block in free), [block for block in free if block.ref_cnt]
        assert self._blocks[NULL_BLOCK_ID].ref_cnt == 0, "the null block was given out"
        assert self._blocks[NULL_BLOCK_ID].next_free is None, "the null block is in the free queue"
        cached = [block for blocks in self._cached.values() for block in blocks]
        assert {block.block_id for block in cached} == {b.block_id for b in self._blocks if b.block_hash is not None}
        for block in self._blocks[1:]:
            if block.ref_cnt == 0:
                expected = FREE if block.block_hash is None else CACHED
            else:
                expected = USED if block.ref_cnt == 1 else SHARED
            assert self._states[block.block_id] == expected, (block, self._states[block.block_id])
