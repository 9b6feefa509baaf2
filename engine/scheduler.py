"""Scheduler: which tokens of which sequences the next step computes.

There is no prefill phase and no decode phase. A sequence has tokens and computed tokens, and a step hands out tokens so
that the second catch up with the first; chunked prefill, prefix caching and resumption after a preemption are all that
one rule. Design: vLLM V1's scheduler; iteration-level scheduling from Orca (OSDI '22), chunked prefill from
Sarathi-Serve (OSDI '24), paging from PagedAttention (SOSP '23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.request_queue import FCFSQueue
from infer.engine.scheduler_output import ScheduledSequence, SchedulerOutput
from infer.engine.sequence import Sequence, SequenceStatus

if TYPE_CHECKING:
    from infer.engine.config import EngineConfig
    from infer.engine.kv_cache_manager import KVCacheManager
    from infer.engine.request_queue import RequestQueue


class Scheduler:
    """Owns every unfinished sequence. `schedule` and `update` are called strictly in pairs."""

    def __init__(self, config: EngineConfig, kv_cache_manager: KVCacheManager) -> None:
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self.waiting: RequestQueue = FCFSQueue()
        self.running: list[Sequence] = []
        self.num_preemptions_total = 0
        self.tokens_wasted_total = 0
        """Computed a second time, because a preemption threw them away."""
        self.prompt_tokens_total = 0
        """Prompt tokens that have been computed or taken from the prefix cache, each counted once."""

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    def has_unfinished(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def schedule(self) -> SchedulerOutput:
        """Plan a step: those running first, then the waiting, where nobody running had to be preempted for room."""
        plan = _StepPlan(self.config.max_num_batched_tokens)
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)
        return plan.output()

    def update(self, output: SchedulerOutput) -> None:
        """Book what the step computed."""
        for item in output.scheduled:
            sequence = item.sequence
            start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + item.num_tokens
            reached = sequence.max_computed_tokens
            self.tokens_wasted_total += max(0, min(end, reached) - start)
            sequence.num_computed_tokens = end
            sequence.max_computed_tokens = max(end, reached)
            num_prompt_tokens = sequence.num_prompt_tokens
            self.prompt_tokens_total += min(sequence.max_computed_tokens, num_prompt_tokens) - min(
                reached, num_prompt_tokens
            )

    def finish(self, sequence: Sequence) -> None:
        """Take `sequence` out, in whatever state it is, and give its blocks back."""
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
            self.kv_cache_manager.free(sequence)
        sequence.status = SequenceStatus.FINISHED

    def check(self) -> None:
        """Verify the invariants that span scheduler and cache; for tests."""
        pool = self.kv_cache_manager.pool
        pool.check()
        assert len(self.running) <= self.config.max_num_seqs, len(self.running)
        references: dict[int, int] = {}
        for sequence in self.running:
            assert sequence.status is SequenceStatus.RUNNING, sequence
            assert sequence.num_computed_tokens <= sequence.num_tokens, sequence
            expected = self.kv_cache_manager.num_blocks_for(sequence.num_computed_tokens)
            assert len(sequence.block_table) == expected, sequence
            for block in sequence.block_table:
                references[block.block_id] = references.get(block.block_id, 0) + 1
                assert block.ref_cnt >= references[block.block_id], (block, sequence)
            if sequence.num_computed_tokens % self.kv_cache_manager.block_size:
                assert sequence.block_table[-1].ref_cnt == 1, f"a partial block is shared: {sequence}"
        for sequence in self.waiting:
            assert sequence.status is SequenceStatus.WAITING, sequence
            assert not sequence.block_table, f"waiting and holding blocks: {sequence}"
        assert pool.num_free_blocks == pool.num_blocks - len(references), (pool.num_free_blocks, references)

    def _schedule_running(self, plan: _StepPlan) -> None:
        index = 0
        while index < len(self.running) and plan.token_budget > 0:
            sequence = self.running[index]
            num_new_tokens = self._chunk(sequence, sequence.num_computed_tokens, plan)
            while not self.kv_cache_manager.allocate_slots(sequence, num_new_tokens):
                victim = self.running[-1]
                self._preempt(victim, plan)
                if victim is sequence:
                    return
            plan.add(sequence, num_new_tokens)
            index += 1

    def _schedule_waiting(self, plan: _StepPlan) -> None:
        for sequence in self._next_waiting():
            if plan.token_budget == 0 or len(self.running) == self.config.max_num_seqs:
                return
            cached_blocks = self.kv_cache_manager.find_cached_blocks(sequence)
            if self.kv_cache_manager.will_be_cached_by(sequence, plan.unfinished_prefills, len(cached_blocks)):
                continue
            num_cached_tokens = len(cached_blocks) * self.kv_cache_manager.block_size
            num_new_tokens = self._chunk(sequence, num_cached_tokens, plan)
            if not self.config.enable_chunked_prefill and num_new_tokens < sequence.num_tokens - num_cached_tokens:
                return
            if not self.kv_cache_manager.allocate_slots(sequence, num_new_tokens, cached_blocks):
                return
            self._admit(sequence, num_cached_tokens)
            plan.add(sequence, num_new_tokens)

    def _next_waiting(self) -> list[Sequence]:
        """As many as one step could admit, and not one more: the queue can be long."""
        candidates = []
        for sequence in self.waiting:
            candidates.append(sequence)
            if len(candidates) == self.config.max_num_seqs:
                break
        return candidates

    def _chunk(self, sequence: Sequence, num_computed_tokens: int, plan: _StepPlan) -> int:
        """Tokens of `sequence` that the step computes."""
        num_new_tokens = sequence.num_tokens_with_spec - num_computed_tokens
        threshold = self.config.long_prefill_token_threshold
        if threshold:
            num_new_tokens = min(num_new_tokens, threshold)
        return min(num_new_tokens, plan.token_budget)

    def _admit(self, sequence: Sequence, num_cached_tokens: int) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.status = SequenceStatus.RUNNING
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = num_cached_tokens
            self.kv_cache_manager.count_hits(sequence, num_cached_tokens)

    def _preempt(self, sequence: Sequence, plan: _StepPlan) -> None:
        """Take the blocks of the last running sequence. It computes its tokens again, from the front of the queue."""
        assert self.running[-1] is sequence, sequence
        self.running.pop()
        plan.remove(sequence)
        self.kv_cache_manager.free(sequence)
        sequence.num_computed_tokens = 0
        sequence.status = SequenceStatus.WAITING
        self.waiting.put_back(sequence)
        plan.preempted.append(sequence)
        self.num_preemptions_total += 1


class _StepPlan:
    """A SchedulerOutput in the making, with the budget that is left."""

    def __init__(self, token_budget: int) -> None:
        self.token_budget = token_budget
        self.preempted: list[Sequence] = []
        self.unfinished_prefills: list[Sequence] = []
        self._scheduled: dict[Sequence, int] = {}

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        assert 0 < num_tokens <= self.token_budget, (sequence, num_tokens, self.token_budget)
        self._scheduled[sequence] = num_tokens
        self.token_budget -= num_tokens
        if sequence.num_computed_tokens + num_tokens < sequence.num_tokens:
            self.unfinished_prefills.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Give the budget of a victim back, where it was already scheduled."""
        self.token_budget += self._scheduled.pop(sequence, 0)
        if sequence in self.unfinished_prefills:
            self.unfinished_prefills.remove(sequence)

    def output(self) -> SchedulerOutput:
        scheduled = tuple(ScheduledSequence(sequence, num_tokens) for sequence, num_tokens in self._scheduled.items())
        return SchedulerOutput(scheduled, tuple(self.preempted))
