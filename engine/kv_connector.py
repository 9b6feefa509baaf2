"""What lies behind the prefix cache of the device: tiers that know the same four verbs, each behind the one above.

    device    BlockPool      its own prefix cache; what it evicts goes down
      |
    host      HostTier       host memory; what it evicts goes down
      |
    disk      DiskCache      outlasts the run

A block comes back up the same way, so a tier needs to know its neighbour only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from infer.engine.scheduler_output import Transfers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from infer.engine.block import Block
    from infer.engine.block_hash import BlockHash

    HashedBlock = tuple[int, BlockHash]
    """A block of the tier above, by its id, and what it holds, or is to hold."""


class KVConnector(Protocol):
    """Keeps blocks for the tier above. A block is found by its tokens and all before them, never by its hash alone."""

    outlasts_run: bool
    """Whether it is of use to a later run, and so is to be given every prompt."""

    def lookup(self, block_hashes: Sequence[BlockHash]) -> list[str]:
        """Which of a prefix's blocks can be loaded: for each, from the first to the last in a row that can, the name of
        the tier that it comes from."""

    def load(self, blocks: Iterable[HashedBlock]) -> bool:
        """Bring what `lookup` has just found into blocks of the tier above. False where it turns out to be damaged."""

    def save(self, blocks: Iterable[HashedBlock]) -> None:
        """Blocks of prompts that have just been filled, or will be by the step being planned: keep what is worth it."""

    def evict(self, blocks: Iterable[HashedBlock]) -> None:
        """The tier above is about to write over these blocks: keep what is worth it."""

    def reset(self) -> None:
        """What was planned may have been done or not: forget all that depends on it."""


class SwapSpace(Protocol):
    """Holds the blocks of preempted sequences, as long as they are not given back."""

    def swap_out(self, blocks: Sequence[tuple[int, BlockHash | None]]) -> list[Block] | None:
        """Plan to copy blocks of the device; None is what a block holds that is not full. Returns the copies, held by
        the caller; None, with nothing changed, where there is no room."""

    def swap_in(self, copies: Iterable[tuple[Block, int]]) -> None:
        """Plan to copy each into a block of the device."""

    def release(self, copies: Sequence[Block]) -> None:
        """Give copies back. What was planned with them is done before they are written over."""

    def take_transfers(self) -> Transfers:
        """The copies that have been planned since this was last called, to and from it."""

    def commit(self) -> None:
        """Those copies have been made."""

    def reset(self) -> None:
        """Whether they have been made is not known: forget all blocks."""

    def check(self, references: Mapping[Block, int]) -> None:
        """Verify, between two steps, that blocks are held by these references alone; for tests."""


class NoTier:
    """Keeps nothing: the end of every chain, and the swap space where there is none."""

    outlasts_run = False

    def lookup(self, block_hashes: Sequence[BlockHash]) -> list[str]:
        return []

    def load(self, blocks: Iterable[HashedBlock]) -> bool:
        return False

    def save(self, blocks: Iterable[HashedBlock]) -> None: ...

    def evict(self, blocks: Iterable[HashedBlock]) -> None: ...

    def swap_out(self, blocks: Sequence[tuple[int, BlockHash | None]]) -> list[Block] | None:
        return None

    def swap_in(self, copies: Iterable[tuple[Block, int]]) -> None:
        raise AssertionError("nothing was swapped out")

    def release(self, copies: Sequence[Block]) -> None: ...

    def take_transfers(self) -> Transfers:
        return Transfers()

    def commit(self) -> None: ...

    def reset(self) -> None: ...

    def check(self, references: Mapping[Block, int]) -> None:
        assert not references, references
