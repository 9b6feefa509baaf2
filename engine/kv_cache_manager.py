"""KVCacheManager: which blocks a sequence has, and which it need not compute."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from infer.engine.block_hash import hash_full_blocks
from infer.engine.block_pool import BlockPool
from infer.engine.cached_prefix import CachedPrefix
from infer.engine.kv_connector import NoTier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from infer.engine.block import Block
    from infer.engine.block_hash import BlockHash
    from infer.engine.kv_connector import HashedBlock, KVConnector, SwapSpace
    from infer.engine.scheduler_output import ScheduledSequence, Transfers
    from infer.engine.sequence import Sequence


_NOTHING_CACHED = CachedPrefix()


class KVCacheManager:
    """Hands the pool's blocks to sequences, whole chunks at a time: a sequence gets all it needs or nothing.

    A block enters the prefix cache when the step that fills it is planned, not when it has run: a sequence admitted
    later in the same step may attend to it, since every layer stores the step's keys and values before it reads any.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool,
        window: int = 0,
        connector: KVConnector | None = None,
        swap_space: SwapSpace | None = None,
    ) -> None:
        """`window` is how many tokens back any layer looks, 0 is all; `connector` keeps prefixes that leave the device,
        `swap_space` the blocks of preempted sequences."""
        self.block_size = block_size
        self.window = window
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self._connector: KVConnector = connector or NoTier()
        self._swap_space: SwapSpace = swap_space or NoTier()
        self.prefix_cache_queries = 0
        """In tokens, as the hits."""
        self.prefix_cache_hits: Counter[str] = Counter()
        """By tier."""
        self._copies: dict[int, int] = {}
        """Ids of blocks that are to be copied before the next step, by where to."""

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fits_empty_pool(self, num_tokens: int) -> bool:
        """Whether a sequence of `num_tokens` could run if it were alone."""
        return self.num_blocks_for(num_tokens) <= self.pool.num_blocks

    def fits_without(self, victims: Iterable[Sequence], sequence: Sequence, token_budget: int) -> bool:
        """Whether a chunk of `sequence` within the budget would have room once `victims` have given way."""
        num_held = Counter(block for victim in victims for block in victim.block_table)
        num_freed = sum(block.ref_cnt == references for block, references in num_held.items())
        prefix = self.find_cached_prefix(sequence)
        num_kept = sum(block.ref_cnt > num_held[block] for block in prefix.blocks)
        num_tokens = min(sequence.num_tokens, prefix.num_tokens + token_budget)
        return self.num_blocks_for(num_tokens) - num_kept <= self.pool.num_free_blocks + num_freed

    def find_cached_prefix(self, sequence: Sequence) -> CachedPrefix:
        """What a sequence that waits will find when it is admitted: blocks of the device's prefix cache, then its own
        copies where it was swapped out, else what the tiers behind the device hold."""
        blocks = self._find_on_device(sequence)
        if sequence.host_blocks:
            # Another may have come further with the same tokens.
            num_tokens = max(sequence.num_computed_tokens, len(blocks) * self.block_size)
            return CachedPrefix(blocks, num_tokens, ["swap"] * (len(sequence.host_blocks) - len(blocks)))
        tiers = self._connector.lookup(self._reusable(sequence)[len(blocks) :])
        return CachedPrefix(blocks, (len(blocks) + len(tiers)) * self.block_size, tiers)

    def allocate_slots(self, sequence: Sequence, num_new_tokens: int, prefix: CachedPrefix = _NOTHING_CACHED) -> bool:
        """Give `sequence` blocks for `num_new_tokens` more tokens, behind `prefix` where it is just admitted.

        Returns False, with nothing given, where there is no room. What is behind the window is given back first.
        """
        self._free_passed(sequence)
        hits = prefix.blocks
        num_computed = max(sequence.num_computed_tokens, prefix.num_tokens)
        num_new_blocks = self.num_blocks_for(num_computed + num_new_tokens) - len(sequence.block_table) - len(hits)
        num_hits_in_free_queue = sum(block.ref_cnt == 0 for block in hits)
        must_copy = self._writes_to_shared_block(sequence)
        if num_new_blocks + must_copy > self.pool.num_free_blocks - num_hits_in_free_queue:
            return False
        if must_copy:
            self._copy_last_block(sequence)
        if hits:
            self.pool.touch(hits)
            sequence.block_table.extend(hits)
            sequence.num_hashed_blocks = len(hits)
        if num_new_blocks > 0:
            sequence.block_table.extend(self.pool.allocate(num_new_blocks))
        sequence.num_computed_tokens = num_computed
        if prefix.tiers:
            self._load(sequence, len(hits), len(hits) + len(prefix.tiers))
        self._release_copies(sequence)
        self._cache_full_blocks(sequence, num_computed + num_new_tokens)
        return True

    def allocate_draft_slots(self, sequence: Sequence, num_new_tokens: int, num_drafts: int) -> int:
        """Give `sequence` blocks for drafts behind `num_new_tokens` tokens that have theirs, as far as there is room.

        Returns for how many. What they fill does not enter the prefix cache: a draft may turn out wrong.
        """
        num_tokens = sequence.num_computed_tokens + num_new_tokens
        num_blocks = len(sequence.block_table) + self.pool.num_free_blocks
        num_drafts = min(num_drafts, num_blocks * self.block_size - num_tokens)
        num_new_blocks = self.num_blocks_for(num_tokens + num_drafts) - len(sequence.block_table)
        if num_new_blocks > 0:
            sequence.block_table.extend(self.pool.allocate(num_new_blocks))
        return num_drafts

    def trim(self, sequence: Sequence) -> None:
        """Give back the blocks behind the computed tokens: those of wrong drafts."""
        num_kept = self.num_blocks_for(sequence.num_computed_tokens)
        self.pool.free(reversed(sequence.block_table[num_kept:]))
        del sequence.block_table[num_kept:]

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Let `child`, of the same tokens, hold all that `parent` does; who writes first to a block takes a copy."""
        self._enter_computed(parent)
        self.pool.touch(parent.block_table[parent.num_passed_blocks :])
        child.block_table = parent.block_table.copy()
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_hashed_blocks = parent.num_hashed_blocks
        child.num_passed_blocks = parent.num_passed_blocks

    def count_hits(self, sequence: Sequence, prefix: CachedPrefix) -> None:
        """Book a first admission in the cache's statistics."""
        self.prefix_cache_queries += sequence.num_prompt_tokens
        for tier in ["device"] * len(prefix.blocks) + prefix.tiers:
            self.prefix_cache_hits[tier] += self.block_size

    def will_be_cached_by(self, sequence: Sequence, others: list[Sequence], num_cached_blocks: int) -> bool:
        """Whether one of `others` is on its way to computing the next block `sequence` would have to compute itself."""
        if not self.enable_prefix_caching or num_cached_blocks >= (sequence.num_tokens - 1) // self.block_size:
            return False
        wanted = sequence.block_hashes[num_cached_blocks]
        return any(
            len(other.block_hashes) > num_cached_blocks and other.block_hashes[num_cached_blocks].is_same_as(wanted)
            for other in others
        )

    def swap_out(self, sequence: Sequence) -> bool:
        """Take the blocks of a running sequence, and plan to keep what it has computed in host memory. False, with
        nothing changed, where there is no room or nothing to keep, or a window has left some of it behind.

        Every block is copied, shared ones too: those who share them may be gone before it comes back.
        """
        if sequence.num_passed_blocks:
            return False
        num_blocks = self.num_blocks_for(sequence.num_computed_tokens)
        self._enter_computed(sequence)
        num_full = sequence.num_computed_tokens // self.block_size if self.enable_prefix_caching else 0
        hashes = [*sequence.block_hashes[:num_full], *[None] * (num_blocks - num_full)]
        # A block that is itself about to be copied still lies where it comes from.
        ids = (block.block_id for block in sequence.block_table[:num_blocks])
        blocks = [self._copies.get(block_id, block_id) for block_id in ids]
        copies = self._swap_space.swap_out(list(zip(blocks, hashes, strict=True))) if blocks else None
        if copies is None:
            return False
        self.free(sequence)
        sequence.host_blocks = copies
        return True

    def free(self, sequence: Sequence) -> None:
        """Give back all blocks, tails first so that they are evicted first. What was planned but not computed leaves
        the prefix cache, and is not copied."""
        self._enter_computed(sequence)
        for block in sequence.block_table[sequence.num_computed_tokens // self.block_size :]:
            self.pool.uncache(block)
            self._copies.pop(block.block_id, None)
        self.pool.free(reversed(sequence.block_table[sequence.num_passed_blocks :]))
        sequence.block_table.clear()
        sequence.num_hashed_blocks = sequence.num_passed_blocks = 0
        self._release_copies(sequence)

    def plan_transfers(self, scheduled: Iterable[ScheduledSequence]) -> Transfers:
        """Offer to the tiers behind the device what the step writes over, and the prompts that it fills. Returns all
        copies that are to be made with it."""
        self._connector.evict(self.pool.evicted.items())
        self._connector.save(block for item in scheduled for block in self._filled_by(item))
        within = tuple((source, target) for target, source in self._copies.items())
        self._copies.clear()
        return replace(self._swap_space.take_transfers(), within=within)

    def commit(self) -> None:
        """The step has been made, with its copies."""
        self._swap_space.commit()

    def reset(self) -> None:
        """Forget all that any block holds, here and in host memory: whether a step that failed has filled it, copied it
        or written over it, nobody knows. Sequences must hold nothing from then on."""
        self.pool.reset()
        self._copies.clear()
        self._connector.reset()
        self._swap_space.reset()

    def drop_tiers(self) -> None:
        """Do without host memory and what lies behind it from now on. Not while a sequence is swapped out."""
        self._connector = self._swap_space = NoTier()

    def check_copies(self, sequences: Iterable[Sequence]) -> None:
        """Verify that host memory is held by `sequences` alone; for tests."""
        self._swap_space.check(Counter(block for sequence in sequences for block in sequence.host_blocks))

    def _free_passed(self, sequence: Sequence) -> None:
        """Give back the blocks that no layer will look at again."""
        if not self.window or not sequence.block_table:
            return
        first_seen = max(0, sequence.num_computed_tokens + 1 - self.window)
        passed = range(sequence.num_passed_blocks, first_seen // self.block_size)
        if passed:
            self._enter_computed(sequence)
        self.pool.free(sequence.block_table[index] for index in passed)
        for index in passed:
            sequence.block_table[index] = self.pool.null_block
        sequence.num_passed_blocks += len(passed)

    def _writes_to_shared_block(self, sequence: Sequence) -> bool:
        """Whether the next token goes into a block that others of the same request hold, too."""
        if sequence.num_computed_tokens % self.block_size == 0 or not sequence.block_table:
            return False
        return sequence.block_table[-1].ref_cnt > 1

    def _copy_last_block(self, sequence: Sequence) -> None:
        shared = sequence.block_table.pop()
        assert shared.block_hash is None, f"full, and about to be written to: {shared}"
        (own,) = self.pool.allocate(1)
        sequence.block_table.append(own)
        self._copies[own.block_id] = shared.block_id
        self.pool.free([shared])

    def _find_on_device(self, sequence: Sequence) -> list[Block]:
        """The longest prefix that the device still holds."""
        blocks = []
        for block_hash in self._reusable(sequence):
            block = self.pool.lookup(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _reusable(self, sequence: Sequence) -> list[BlockHash]:
        """Keys of the blocks that it need not compute itself. At least one token is left to compute: the last one's
        logits are needed."""
        if not self.enable_prefix_caching:
            return []
        hash_full_blocks(sequence.block_hashes, sequence.token_ids, self.block_size)
        return sequence.block_hashes[: (sequence.num_tokens - 1) // self.block_size]

    def _load(self, sequence: Sequence, start: int, end: int) -> None:
        """Plan to fill blocks of its table, from its own copies or from a tier."""
        block_ids = [block.block_id for block in sequence.block_table[start:end]]
        if sequence.host_blocks:
            self._swap_space.swap_in(zip(sequence.host_blocks[start:], block_ids, strict=True))
        else:
            self._connector.load(zip(block_ids, sequence.block_hashes[start:end], strict=True))

    def _release_copies(self, sequence: Sequence) -> None:
        if sequence.host_blocks:
            self._swap_space.release(sequence.host_blocks)
            sequence.host_blocks = []

    def _filled_by(self, item: ScheduledSequence) -> Iterator[HashedBlock]:
        """The blocks of its prompt that a step fills. What was generated is seldom another's prefix."""
        sequence, start = item.sequence, item.sequence.num_computed_tokens
        end = min(start + item.num_tokens, sequence.num_prompt_tokens)
        for index in range(start // self.block_size, end // self.block_size):
            yield sequence.block_table[index].block_id, sequence.block_hashes[index]

    def _enter_computed(self, sequence: Sequence) -> None:
        """Right drafts can have filled blocks that are not in the prefix cache yet; who ended may have dropped some."""
        if sequence.block_table:
            self._cache_full_blocks(sequence, min(sequence.num_computed_tokens, sequence.num_tokens))

    def _cache_full_blocks(self, sequence: Sequence, num_tokens: int) -> None:
        """Enter the blocks that are full once `num_tokens` tokens are computed. One that a pending token fills has no
        key yet, and is entered when the token is read."""
        num_full = min(num_tokens, len(sequence.token_ids)) // self.block_size
        if not self.enable_prefix_caching or num_full <= sequence.num_hashed_blocks:
            return
        hash_full_blocks(sequence.block_hashes, sequence.token_ids, self.block_size)
        for index in range(sequence.num_hashed_blocks, num_full):
            self.pool.cache(sequence.block_table[index], sequence.block_hashes[index])
        sequence.num_hashed_blocks = num_full
