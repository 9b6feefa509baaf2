"""HostTier: which block of host memory holds what. It plans the copies, the model runner makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.block_pool import BlockPool
from infer.engine.kv_connector import NoTier
from infer.engine.scheduler_output import Transfers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from infer.engine.block import Block
    from infer.engine.block_hash import BlockHash
    from infer.engine.kv_connector import HashedBlock, KVConnector

_NOTHING = NoTier()


class HostTier:
    """A KVConnector and a SwapSpace on one pool. Swapped sequences hold their copies; prefixes lie in what is free,
    until it is needed, least recently used first.

    The blocks of a plan's copies are held until the plan is done: none is given out again while it is in use.
    """

    outlasts_run = False

    def __init__(self, num_blocks: int, below: KVConnector = _NOTHING) -> None:
        self.pool = BlockPool(num_blocks)
        self._below = below
        self._brought: dict[int, str] = {}
        """Blocks that came from below and were not loaded since, with the tier that they came from."""
        self._out: list[tuple[int, int]] = []
        self._back: list[tuple[int, int]] = []
        self._filled: list[tuple[int, int]] = []
        self._saving: list[HashedBlock] = []
        """Blocks of this tier that will be full when the plan is done, for the tier below."""
        self._in_flight: list[Block] = []

    def lookup(self, block_hashes: Sequence[BlockHash]) -> list[str]:
        """What lies below is brought up at once: only then is it known to be whole."""
        found: list[Block] = []
        for block_hash in block_hashes:
            block = self._hold(block_hash) or self._bring(block_hash)
            if block is None:
                break
            found.append(block)
        self.release(found)
        return [self._brought.get(block.block_id, "host") for block in found]

    def load(self, blocks: Iterable[HashedBlock]) -> bool:
        for block_id, block_hash in blocks:
            block = self._hold(block_hash)
            assert block is not None, f"looked up and gone, for block {block_id}"
            self._brought.pop(block.block_id, None)
            self._back.append((block.block_id, block_id))
            self._in_flight.append(block)
        return True

    def save(self, blocks: Iterable[HashedBlock]) -> None:
        if not self._below.outlasts_run:
            return
        for block_id, block_hash in blocks:
            if not self._below.lookup([block_hash]) and self.pool.lookup(block_hash) is None:
                copy = self._copy(block_id, block_hash, self._filled)
                if copy is None:
                    return
                self._saving.append((copy.block_id, block_hash))

    def evict(self, blocks: Iterable[HashedBlock]) -> None:
        for block_id, block_hash in blocks:
            kept = self._hold(block_hash)
            if kept is not None:
                # As the one used last.
                self.release([kept])
            elif self._copy(block_id, block_hash, self._out) is None:
                return

    def swap_out(self, blocks: Sequence[tuple[int, BlockHash | None]]) -> list[Block] | None:
        """A block that is here already, swapped by another or kept as a prefix, is held once more and not copied."""
        held = [None if block_hash is None else self._hold(block_hash) for _, block_hash in blocks]
        if held.count(None) > self.pool.num_free_blocks:
            self.release([block for block in held if block is not None])
            return None
        copies = []
        for (block_id, block_hash), known in zip(blocks, held, strict=True):
            copy = known or self._allocate()
            if known is None:
                self._out.append((block_id, copy.block_id))
                if block_hash is not None:
                    self.pool.cache(copy, block_hash)
            copies.append(copy)
        return copies

    def swap_in(self, copies: Iterable[tuple[Block, int]]) -> None:
        for copy, block_id in copies:
            self.pool.touch([copy])
            self._back.append((copy.block_id, block_id))
            self._in_flight.append(copy)

    def release(self, copies: Sequence[Block]) -> None:
        """Give references back, tails first: heads are needed by more."""
        self.pool.free(reversed(copies))

    def take_transfers(self) -> Transfers:
        """The copies that have been planned since this was last called."""
        transfers = Transfers(out=tuple(self._out), back=tuple(self._back), filled=tuple(self._filled))
        self._out, self._back, self._filled = [], [], []
        return transfers

    def commit(self) -> None:
        """The copies that were taken have been made."""
        self._below.save(self._saving)
        self.release(self._in_flight)
        self._saving, self._in_flight = [], []

    def reset(self) -> None:
        self.pool.reset()
        self._brought.clear()
        self._out, self._back, self._filled = [], [], []
        self._saving, self._in_flight = [], []
        self.pool.take_events()

    def check(self, references: Mapping[Block, int]) -> None:
        """Verify every invariant of the pool, and that nothing is left of past plans."""
        self.pool.check()
        planned = [*self._out, *self._back, *self._filled, *self._saving, *self._in_flight]
        assert not planned, f"a plan is not done: {planned}"
        assert all(block.ref_cnt == num_references for block, num_references in references.items()), references
        assert self.pool.num_free_blocks == self.pool.num_blocks - len(references), references

    def _hold(self, block_hash: BlockHash) -> Block | None:
        block = self.pool.lookup(block_hash)
        if block is not None:
            self.pool.touch([block])
        return block

    def _bring(self, block_hash: BlockHash) -> Block | None:
        tiers = self._below.lookup([block_hash])
        if not tiers or not self.pool.num_free_blocks:
            return None
        block = self._allocate()
        if not self._below.load([(block.block_id, block_hash)]):
            self.release([block])
            return None
        self.pool.cache(block, block_hash)
        self._brought[block.block_id] = tiers[0]
        return block

    def _copy(self, block_id: int, block_hash: BlockHash, plan: list[tuple[int, int]]) -> Block | None:
        """Plan to copy a full block of the device. None where every block is held."""
        if not self.pool.num_free_blocks:
            return None
        copy = self._allocate()
        self.pool.cache(copy, block_hash)
        plan.append((block_id, copy.block_id))
        self._in_flight.append(copy)
        return copy

    def _allocate(self) -> Block:
        (block,) = self.pool.allocate(1)
        # Nothing is written to the evicted block before the plan is carried out, so it can still be read.
        self._below.evict(self.pool.take_events().evicted.items())
        self._brought.pop(block.block_id, None)
        return block
