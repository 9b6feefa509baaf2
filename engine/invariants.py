"""What holds between two steps, whatever happened: every sequence has its blocks, and every block its holders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.sequence import SequenceStatus

if TYPE_CHECKING:
    from infer.engine.scheduler import Scheduler


def check_invariants(scheduler: Scheduler) -> None:
    """Raises AssertionError with what is wrong. Walks all sequences and blocks."""
    pool = scheduler.kv_cache_manager.pool
    pool.check()
    assert len(scheduler.running) <= scheduler.config.max_num_seqs, len(scheduler.running)
    references: dict[int, int] = {}
    sharers: dict[int, set[int]] = {}
    for sequence in scheduler.running:
        assert sequence.status is SequenceStatus.RUNNING, sequence
        assert sequence.num_computed_tokens <= sequence.num_tokens, sequence
        assert sequence.num_hashed_blocks <= sequence.num_computed_tokens // scheduler.kv_cache_manager.block_size, (
            sequence
        )
        expected = scheduler.kv_cache_manager.num_blocks_for(sequence.num_computed_tokens)
        assert len(sequence.block_table) == expected, sequence
        for block in sequence.block_table[sequence.num_passed_blocks :]:
            references[block.block_id] = references.get(block.block_id, 0) + 1
            assert block.ref_cnt >= references[block.block_id], (block, sequence)
        if sequence.num_computed_tokens % scheduler.kv_cache_manager.block_size:
            sharers.setdefault(sequence.block_table[-1].block_id, set()).add(sequence.request_id)
    for block_id, requests in sharers.items():
        assert len(requests) == 1, f"block {block_id} is partial, and held by the requests {requests}"
    for sequence in scheduler.waiting:
        is_swapped = sequence.status is SequenceStatus.SWAPPED
        assert is_swapped or sequence.status is SequenceStatus.WAITING, sequence
        assert not sequence.block_table, f"waiting and holding blocks: {sequence}"
        expected = scheduler.kv_cache_manager.num_blocks_for(sequence.num_computed_tokens)
        assert len(sequence.host_blocks) == expected, sequence
        assert bool(expected) == is_swapped, sequence
    scheduler.kv_cache_manager.check_copies(scheduler.waiting)
    assert pool.num_free_blocks == pool.num_blocks - len(references), (pool.num_free_blocks, references)
