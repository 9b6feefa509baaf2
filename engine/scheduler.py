"""Scheduler: which tokens of which sequences the next step computes.

There is no prefill phase and no decode phase. A sequence has tokens and computed tokens, and a step hands out tokens so
that the second catch up with the first; chunked prefill, prefix caching, resumption after a preemption and speculative
decoding are all that one rule. Design: vLLM V1's scheduler; iteration-level scheduling from Orca (OSDI '22), chunked
prefill from Sarathi-Serve (OSDI '24), paging from PagedAttention (SOSP '23).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import replace
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING

from infer.engine.admission import ForesightedAdmission, OpenAdmission
from infer.engine.invariants import check_invariants
from infer.engine.preemption import ModeChooser, VictimChooser
from infer.engine.prefill_limits import PrefillLimits
from infer.engine.request_queue import FCFSQueue, PriorityQueue
from infer.engine.sequence import Sequence, SequenceStatus
from infer.engine.step_limits import Pause, StepLimits
from infer.engine.step_plan import StepPlan
from infer.engine.step_record import SchedulerCounters, record_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from infer.engine.admission import Admission
    from infer.engine.cached_prefix import CachedPrefix
    from infer.engine.config import EngineConfig
    from infer.engine.cost_model import CostModel
    from infer.engine.kv_cache_manager import KVCacheManager
    from infer.engine.request_queue import RequestQueue
    from infer.engine.scheduler_output import SchedulerOutput
    from infer.engine.step_record import StepRecord

_QUEUES: dict[str, type[FCFSQueue | PriorityQueue]] = {"fcfs": FCFSQueue, "priority": PriorityQueue}


_CANDIDATES_PER_SEQUENCE = 4


class _Outcome(Enum):
    """What came of a waiting sequence in a step."""

    ADMITTED = auto()
    PASSED_OVER = auto()
    """It waits for others, and those behind it need not."""
    NO_ROOM = auto()
    LATER = auto()
    """No budget is left in this step, or those that run will need the room."""


class Scheduler:
    """Owns every unfinished sequence. `schedule` and `update` are called strictly in pairs."""

    def __init__(
        self, config: EngineConfig, kv_cache_manager: KVCacheManager, cost_model: CostModel | None = None
    ) -> None:
        """`cost_model` tells what to swap out, where `preemption_mode` leaves it open."""
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self.waiting: RequestQueue = _QUEUES[config.scheduling_policy]()
        self.running: list[Sequence] = []
        """In the order in which they are served: by class and arrival."""
        self.limits = StepLimits.of(config)
        self.pause = Pause.NOTHING
        self.counters = SchedulerCounters()
        self.num_steps = 0
        self.last_step: StepRecord | None = None
        self._victims = VictimChooser(config.scheduling_policy, config.preemption_victim, config.block_size)
        self._modes = ModeChooser(config.preemption_mode, cost_model, config.block_size)
        self._prefills = PrefillLimits(config)
        self._admission: Admission = OpenAdmission()
        if config.enable_admission_control:
            self._admission = ForesightedAdmission(kv_cache_manager, self._victims.rank)
        self._num_arrivals = 0

    def add(self, sequence: Sequence) -> None:
        sequence.arrival = self._num_arrivals
        self._num_arrivals += 1
        self.waiting.add(sequence)

    def has_unfinished(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def schedule(self) -> SchedulerOutput:
        """Plan a step: those running first, then the waiting, where nobody running had to be preempted for room. Drafts
        get what these leave of budget and blocks."""
        plan = StepPlan(0 if self.pause is Pause.ALL else self.limits.max_num_batched_tokens)
        self._schedule_running(plan)
        if self.pause is not Pause.ALL and (plan.is_empty or not plan.preempted):
            self._schedule_waiting(plan)
        self._schedule_drafts(plan)
        scheduled = plan.scheduled()
        return plan.output(scheduled, self.kv_cache_manager.plan_transfers(scheduled))

    def update(
        self, output: SchedulerOutput, num_accepted: Mapping[Sequence, int] = {}, pending: Iterable[Sequence] = ()
    ) -> None:
        """Book what the step computes and copies. `num_accepted` of the drafts of a sequence were right, from the first
        one on; the others' keys and values are left behind in slots that are written again before they are read. The
        tokens sampled of those in `pending` are not read yet."""
        before = replace(self.counters)
        self.counters.book_transfers(output.transfers)
        self.kv_cache_manager.commit()
        for item in output.scheduled:
            sequence = item.sequence
            num_right = num_accepted.get(sequence, 0)
            num_wrong = item.num_draft_tokens - num_right
            self.counters.book(item, num_right)
            sequence.num_computed_tokens += item.num_tokens - num_wrong
            if sequence.draft_token_ids:
                sequence.draft_token_ids.clear()
                self.kv_cache_manager.trim(sequence)
            sequence.max_computed_tokens = max(sequence.num_computed_tokens, sequence.max_computed_tokens)
        for sequence in pending:
            sequence.num_pending_tokens += 1
        self.num_steps += 1
        self.last_step = record_step(self, output, before)

    def fork(self, sequence: Sequence, branch_index: int) -> Sequence:
        """A second sequence with the tokens of an unfinished one, which goes its own way from here on.

        It holds the same blocks where there is a seat for it, and else waits.
        """
        child = sequence.fork(branch_index)
        if sequence.status is SequenceStatus.RUNNING and len(self.running) < self.limits.max_num_seqs:
            self.kv_cache_manager.share(sequence, child)
            child.status = SequenceStatus.RUNNING
            insort(self.running, child, key=self._victims.rank)
        else:
            self.waiting.put_back(child)
        return child

    def finish(self, sequence: Sequence) -> None:
        """Take a running sequence out that has its last token: how long it became is learned from."""
        self._admission.observe(sequence)
        self.abort(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Take `sequence` out, in whatever state it is, and give its blocks back."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is not SequenceStatus.FINISHED:
            self.waiting.remove(sequence)
        self.kv_cache_manager.free(sequence)
        sequence.status = SequenceStatus.FINISHED

    def reset(self, sequences: Iterable[Sequence]) -> None:
        """Let `sequences`, all that are unfinished, wait to be computed from their first token on, whatever a step that
        failed has left of queues and blocks."""
        self.kv_cache_manager.reset()
        self.running = []
        self.waiting = _QUEUES[self.config.scheduling_policy]()
        for sequence in sorted(sequences, key=lambda each: (each.arrival, each.branch_index)):
            sequence.lose_cache()
            self.waiting.add(sequence)

    def check(self) -> None:
        """Verify the invariants that span scheduler and cache; for tests."""
        check_invariants(self)

    def _schedule_running(self, plan: StepPlan) -> None:
        num_long = self._prefills.count_long(self.running)
        for sequence in list(self.running):
            if plan.token_budget == 0:
                return
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            left = sequence.num_tokens - sequence.num_computed_tokens
            if sequence.is_idle:
                continue
            num_new_tokens = self._prefills.cut(left, plan.token_budget, num_long)
            num_long -= num_new_tokens < left
            if self._make_room(sequence, num_new_tokens, plan):
                plan.add(sequence, num_new_tokens)

    def _schedule_drafts(self, plan: StepPlan) -> None:
        """Last of all, so that a draft displaces no token and preempts nobody. Those that get nothing are dropped."""
        left = self.config.max_num_draft_tokens
        for sequence in self.running:
            if not sequence.draft_token_ids:
                continue
            num_tokens = plan.num_tokens_of(sequence)
            num_drafts = 0
            if num_tokens and sequence.num_computed_tokens + num_tokens == sequence.num_tokens:
                wanted = sequence.num_tokens_with_spec - sequence.num_tokens
                num_drafts = min(wanted, sequence.max_draft_tokens, plan.token_budget, left)
                num_drafts = self.kv_cache_manager.allocate_draft_slots(sequence, num_tokens, num_drafts)
                plan.add_drafts(sequence, num_drafts)
                left -= num_drafts
            del sequence.draft_token_ids[num_drafts:]

    def _make_room(self, sequence: Sequence, num_new_tokens: int, plan: StepPlan) -> bool:
        """Give a running sequence its blocks, at the cost of those served after it. False where it gave way itself."""
        while not self.kv_cache_manager.allocate_slots(sequence, num_new_tokens):
            victim = self._victims.choose(self.running, sequence)
            self._preempt(victim or sequence, plan, beneficiary=sequence)
            if victim is None:
                return False
        return True

    def _schedule_waiting(self, plan: StepPlan) -> None:
        if self.running and all(sequence.awaits_choice for sequence in self.running):
            self._clear_the_way(plan)
        num_seats = self.limits.max_num_seqs - self._num_seats_taken()
        if num_seats <= 0:
            return
        self._admission.begin(self.running)
        for sequence in self._next_waiting():
            if plan.token_budget == 0 or (self.running and sequence.num_branches > num_seats):
                return
            outcome = self._try_to_admit(sequence, plan)
            while outcome is _Outcome.NO_ROOM and (victim := self._preempt_lower(sequence, plan)) is not None:
                num_seats += victim.num_branches
                # From the beginning: what the cache holds and the budget have changed.
                outcome = self._try_to_admit(sequence, plan)
            if outcome in (_Outcome.NO_ROOM, _Outcome.LATER):
                return
            if outcome is _Outcome.ADMITTED:
                num_seats -= sequence.num_branches

    def _try_to_admit(self, sequence: Sequence, plan: StepPlan) -> _Outcome:
        manager = self.kv_cache_manager
        prefix = manager.find_cached_prefix(sequence)
        if manager.will_be_cached_by(sequence, plan.unfinished_prefills, manager.num_blocks_for(prefix.num_tokens)):
            return _Outcome.PASSED_OVER
        left = sequence.num_tokens - prefix.num_tokens
        num_new_tokens = self._prefills.cut(left, plan.token_budget, 1)
        if num_new_tokens < left:
            if not self.config.enable_chunked_prefill:
                return _Outcome.LATER
            if not self._prefills.admits_partial(sequence, plan):
                return _Outcome.PASSED_OVER
        if not self._admission.admits(sequence, prefix.blocks):
            return _Outcome.LATER
        if not manager.allocate_slots(sequence, num_new_tokens, prefix):
            return _Outcome.NO_ROOM
        self._admit(sequence, prefix, plan)
        plan.add(sequence, num_new_tokens)
        return _Outcome.ADMITTED

    def _num_seats_taken(self) -> int:
        """Of `max_num_seqs`: a sequence that will be forked takes as many as it will become."""
        return sum(sequence.num_branches for sequence in self.running)

    def _clear_the_way(self, plan: StepPlan) -> None:
        """Preempt all that run where none of them can go on before one that waits has run."""
        for sequence in list(reversed(self.running)):
            self._preempt(sequence, plan, beneficiary=sequence)

    def _preempt_lower(self, sequence: Sequence, plan: StepPlan) -> Sequence | None:
        """Preempt one sequence of a lower class for one that waits, if they all together could make room for it.

        Returns who that was; None where they could not.
        """
        # None of them was begun in this step: those of their class come after `sequence`. So what they hold is there.
        victims = self._victims.strictly_lower(self.running, sequence)
        token_budget = plan.token_budget + sum(map(plan.num_tokens_of, victims))
        if not victims or not self.kv_cache_manager.fits_without(victims, sequence, token_budget):
            return None
        self._preempt(victims[0], plan, beneficiary=sequence)
        self._admission.begin(self.running)
        return victims[0]

    def _next_waiting(self) -> list[Sequence]:
        """More than a step admits, since some are passed over, but not all: the queue can be long."""
        may_begin = self.pause is Pause.NOTHING
        can_go_on = (each for each in self.waiting if not each.is_idle and (may_begin or each.was_begun))
        return list(islice(can_go_on, _CANDIDATES_PER_SEQUENCE * self.limits.max_num_seqs))

    def _admit(self, sequence: Sequence, prefix: CachedPrefix, plan: StepPlan) -> None:
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=self._victims.rank)
        if sequence.status is SequenceStatus.SWAPPED:
            plan.swapped_in.append(sequence)
        else:
            plan.num_hit_tokens += prefix.num_tokens
        sequence.status = SequenceStatus.RUNNING
        if not sequence.was_begun:
            sequence.num_cached_tokens = prefix.num_tokens
            self.kv_cache_manager.count_hits(sequence, prefix)

    def _preempt(self, sequence: Sequence, plan: StepPlan, *, beneficiary: Sequence) -> None:
        """Take the blocks of a running sequence. When its turn comes, its tokens are copied back or computed again."""
        self.running.remove(sequence)
        plan.preempt(sequence, beneficiary)
        sequence.draft_token_ids.clear()
        if self._modes.swaps(sequence) and self.kv_cache_manager.swap_out(sequence):
            sequence.status = SequenceStatus.SWAPPED
            plan.swapped_out.append(sequence)
            self.counters.num_swaps += 1
        else:
            self.kv_cache_manager.free(sequence)
            sequence.num_computed_tokens = 0
            sequence.status = SequenceStatus.WAITING
        self.waiting.put_back(sequence)
        self.counters.num_preemptions += 1
