"""What was decided in one step, for a log or a table; and the counters over all steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infer.engine.scheduler import Scheduler
    from infer.engine.scheduler_output import ScheduledSequence, SchedulerOutput, Transfers


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the scheduler was made."""

    num_preemptions: int = 0
    num_swaps: int = 0
    """Of the preemptions, those that copied blocks to host memory."""
    num_blocks_to_host: int = 0
    """Of swapped sequences, evicted prefixes, and prompts on their way to the disk."""
    num_blocks_from_host: int = 0
    prompt_tokens: int = 0
    """Computed or taken from the prefix cache, each counted once."""
    tokens_wasted: int = 0
    """Computed a second time, because a preemption threw them away, or a forked sequence found no seat."""
    prefill_tokens: int = 0
    """Prompt tokens that were computed, the first time."""
    decode_tokens: int = 0
    """Generated tokens that were computed, the first time."""
    draft_tokens: int = 0
    """Guesses that were computed. All that entered the model is one of the four: prefill, decode, draft, wasted."""
    accepted_tokens: int = 0
    """Drafts that were what was sampled. An answer that ends on one drops the others behind it."""

    def book(self, item: ScheduledSequence, num_accepted: int) -> None:
        """Count what was computed of a sequence, before its own figures are moved on."""
        sequence = item.sequence
        start, end, reached = (
            sequence.num_computed_tokens,
            sequence.num_computed_tokens + item.num_tokens - item.num_draft_tokens,
            sequence.max_computed_tokens,
        )
        num_prompt_tokens = sequence.num_prompt_tokens
        first_new = max(start, min(end, reached))
        num_prefill_tokens = max(0, min(end, num_prompt_tokens) - first_new)
        self.tokens_wasted += first_new - start
        self.prefill_tokens += num_prefill_tokens
        self.decode_tokens += end - first_new - num_prefill_tokens
        self.draft_tokens += item.num_draft_tokens
        self.accepted_tokens += num_accepted
        self.prompt_tokens += min(max(end, reached), num_prompt_tokens) - min(reached, num_prompt_tokens)

    def book_transfers(self, transfers: Transfers) -> None:
        self.num_blocks_to_host += len(transfers.out) + len(transfers.filled)
        self.num_blocks_from_host += len(transfers.back)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. Requests by their ids, once for each of their sequences; blocks by theirs."""

    step: int
    scheduled: tuple[tuple[int, int], ...]
    """Requests, each with the number of its tokens."""
    preempted: tuple[tuple[int, int], ...]
    """Requests that compute their tokens again, each with the one that needed its room: itself where nobody else could
    give way."""
    num_running: int
    """Sequences."""
    num_waiting: int
    """Sequences, swapped ones included."""
    num_free_blocks: int
    prefill_tokens: int
    decode_tokens: int
    draft_tokens: int
    accepted_tokens: int
    """Drafts that were right."""
    recomputed_tokens: int
    hit_tokens: int
    """Tokens that the prefix cache gave to requests begun, or begun again, in this step."""
    given_blocks: tuple[int, ...]
    freed_blocks: tuple[int, ...]
    """Since the step before: by requests that ended, and by preempted ones."""
    evicted_blocks: tuple[int, ...]
    """Of those given, which held a prefix until then."""
    swapped_out: tuple[tuple[int, int], ...] = ()
    """Requests whose blocks went to host memory instead, in the same way."""
    swapped_in: tuple[int, ...] = ()
    """Requests whose blocks came back."""
    blocks_to_host: int = 0
    """Copied there: of swapped requests, evicted prefixes, and prompts on their way to the disk."""
    blocks_from_host: int = 0

    def __str__(self) -> str:
        parts = [
            f"step {self.step}",
            f"running {self.num_running} waiting {self.num_waiting}",
            f"tokens {self.prefill_tokens} prefill {self.decode_tokens} decode {self.recomputed_tokens} again "
            f"{self.hit_tokens} cached",
        ]
        if self.draft_tokens:
            parts.append(f"drafts {self.draft_tokens}, {self.accepted_tokens} right")
        alone = [request for request, num_tokens in self.scheduled if num_tokens == 1]
        chunks = [f"{request}:{num_tokens}" for request, num_tokens in self.scheduled if num_tokens != 1]
        if alone:
            parts.append(f"one each {ranges(alone)}")
        if chunks:
            parts.append(f"chunks {' '.join(chunks)}")
        for what, victims in (("preempted", self.preempted), ("swapped out", self.swapped_out)):
            for request, beneficiary in victims:
                reason = "no room for itself" if request == beneficiary else f"no room for {beneficiary}"
                parts.append(f"{what} {request}, {reason}")
        if self.swapped_in:
            parts.append(f"swapped in {ranges(self.swapped_in)}")
        if self.blocks_to_host or self.blocks_from_host:
            parts.append(f"copied {self.blocks_to_host} to host {self.blocks_from_host} from host")
        for name, blocks in (
            ("given", self.given_blocks),
            ("freed", self.freed_blocks),
            ("evicted", self.evicted_blocks),
        ):
            if blocks:
                parts.append(f"{name} {ranges(blocks)}")
        return "; ".join([*parts, f"free {self.num_free_blocks}"])


def record_step(scheduler: Scheduler, output: SchedulerOutput, before: SchedulerCounters) -> StepRecord:
    """Of the step that `scheduler` has just booked; `before` is what its counters were before that."""
    pool, counters = scheduler.kv_cache_manager.pool, scheduler.counters
    events = pool.take_events()
    swapped_out = {victim: output.preempted[victim] for victim in output.swapped_out}
    preempted = {victim: other for victim, other in output.preempted.items() if victim not in swapped_out}
    return StepRecord(
        step=scheduler.num_steps,
        scheduled=tuple((item.sequence.request_id, item.num_tokens) for item in output.scheduled),
        preempted=tuple((victim.request_id, other.request_id) for victim, other in preempted.items()),
        swapped_out=tuple((victim.request_id, other.request_id) for victim, other in swapped_out.items()),
        swapped_in=tuple(sequence.request_id for sequence in output.swapped_in),
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_free_blocks=pool.num_free_blocks,
        prefill_tokens=counters.prefill_tokens - before.prefill_tokens,
        decode_tokens=counters.decode_tokens - before.decode_tokens,
        draft_tokens=counters.draft_tokens - before.draft_tokens,
        accepted_tokens=counters.accepted_tokens - before.accepted_tokens,
        recomputed_tokens=counters.tokens_wasted - before.tokens_wasted,
        hit_tokens=output.num_hit_tokens,
        blocks_to_host=counters.num_blocks_to_host - before.num_blocks_to_host,
        blocks_from_host=counters.num_blocks_from_host - before.num_blocks_from_host,
        given_blocks=tuple(events.given),
        freed_blocks=tuple(events.freed),
        evicted_blocks=tuple(events.evicted),
    )


def ranges(numbers: Iterable[int]) -> str:
    """`1-3,7`: consecutive numbers together."""
    groups = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
