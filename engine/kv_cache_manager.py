"""KVCacheManager: which blocks a sequence has, and which it need not compute."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from infer.engine.block_hash import hash_full_blocks
from infer.engine.block_pool import BlockPool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infer.engine.block import Block
    from infer.engine.sequence import Sequence


class KVCacheManager:
    """Hands the pool's blocks to sequences, whole chunks at a time: a sequence gets all it needs or nothing.

    A block enters the prefix cache when the step that fills it is planned, not when it has run: a sequence admitted
    later in the same step may attend to it, since every layer stores the step's keys and values before it reads any.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool, window: int = 0) -> None:
        """`window` is how many tokens back any layer looks; 0 is all."""
        self.block_size = block_size
        self.window = window
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
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
        hits = self.find_cached_blocks(sequence)
        num_kept = sum(block.ref_cnt > num_held[block] for block in hits)
        num_tokens = min(sequence.num_tokens, len(hits) * self.block_size + token_budget)
        return self.num_blocks_for(num_tokens) - num_kept <= self.pool.num_free_blocks + num_freed

    def find_cached_blocks(self, sequence: Sequence) -> list[Block]:
        """The longest cached prefix of `sequence`, as blocks not yet touched. At least one token is left to compute:
        the last one's logits are needed."""
        if not self.enable_prefix_caching:
            return []
        hash_full_blocks(sequence.block_hashes, sequence.token_ids, self.block_size)
        blocks = []
        for block_hash in sequence.block_hashes[: (sequence.num_tokens - 1) // self.block_size]:
            block = self.pool.lookup(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def allocate_slots(self, sequence: Sequence, num_new_tokens: int, cached_blocks: list[Block] | None = None) -> bool:
        """Give `sequence` blocks for `num_new_tokens` more tokens, behind `cached_blocks` where it is just admitted.

        Returns False, with nothing given, where there is no room. What is behind the window is given back first.
        """
        self._free_passed(sequence)
        hits = cached_blocks or []
        num_computed = sequence.num_computed_tokens + len(hits) * self.block_size
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
            sequence.num_computed_tokens = num_computed
        if num_new_blocks > 0:
            sequence.block_table.extend(self.pool.allocate(num_new_blocks))
        self._cache_full_blocks(sequence, num_computed + num_new_tokens)
        return True

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Let `child`, of the same tokens, hold all that `parent` does; who writes first to a block takes a copy."""
        self.pool.touch(parent.block_table[parent.num_passed_blocks :])
        child.block_table = parent.block_table.copy()
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_hashed_blocks = parent.num_hashed_blocks
        child.num_passed_blocks = parent.num_passed_blocks

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """Ids of blocks, from and to, that are to be copied before the step that has been planned."""
        copies = tuple((source, target) for target, source in self._copies.items())
        self._copies.clear()
        return copies

    def count_hits(self, sequence: Sequence, num_hit_tokens: int) -> None:
        """Book a first admission in the cache's statistics."""
        self.prefix_cache_queries += sequence.num_prompt_tokens
        self.prefix_cache_hits += num_hit_tokens

    def will_be_cached_by(self, sequence: Sequence, others: list[Sequence], num_cached_blocks: int) -> bool:
        """Whether one of `others` is on its way to computing the next block `sequence` would have to compute itself."""
        if not self.enable_prefix_caching or num_cached_blocks >= (sequence.num_tokens - 1) // self.block_size:
            return False
        wanted = sequence.block_hashes[num_cached_blocks]
        return any(
            len(other.block_hashes) > num_cached_blocks and other.block_hashes[num_cached_blocks].is_same_as(wanted)
            for other in others
        )

    def free(self, sequence: Sequence) -> None:
        """Give back all blocks, tails first so that they are evicted first. What was planned but not computed leaves
        the prefix cache, and is not copied."""
        for block in sequence.block_table[sequence.num_computed_tokens // self.block_size :]:
            self.pool.uncache(block)
            self._copies.pop(block.block_id, None)
        self.pool.free(reversed(sequence.block_table[sequence.num_passed_blocks :]))
        sequence.block_table.clear()
        sequence.num_hashed_blocks = sequence.num_passed_blocks = 0

    def _free_passed(self, sequence: Sequence) -> None:
        """Give back the blocks that no layer will look at again."""
        if not self.window:
            return
        first_seen = max(0, sequence.num_computed_tokens + 1 - self.window)
        passed = range(sequence.num_passed_blocks, first_seen // self.block_size)
        self.pool.free(sequence.block_table[index] for index in passed)
        for index in passed:
            sequence.block_table[index] = self.pool.null_block
        sequence.num_passed_blocks += len(passed)

    def _writes_to_shared_block(self, sequence: Sequence) -> bool:
        """Whether the next token goes into a block that others of the same request hold, too."""
        return sequence.num_computed_tokens % self.block_size > 0 and sequence.block_table[-1].ref_cnt > 1

    def _copy_last_block(self, sequence: Sequence) -> None:
        shared = sequence.block_table.pop()
        assert shared.block_hash is None, f"full, and about to be written to: {shared}"
        (own,) = self.pool.allocate(1)
        sequence.block_table.append(own)
        self._copies[own.block_id] = shared.block_id
        self.pool.free([shared])

    def _cache_full_blocks(self, sequence: Sequence, num_tokens: int) -> None:
        """Enter the blocks that are full once `num_tokens` tokens are computed."""
        num_full = num_tokens // self.block_size
        if not self.enable_prefix_caching or num_full <= sequence.num_hashed_blocks:
            return
        hash_full_blocks(sequence.block_hashes, sequence.token_ids, self.block_size)
        for index in range(sequence.num_hashed_blocks, num_full):
            self.pool.cache(sequence.block_table[index], sequence.block_hashes[index])
        sequence.num_hashed_blocks = num_full
