"""A SchedulerOutput in the making, with the budgets that are left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.scheduler_output import ScheduledSequence, SchedulerOutput

if TYPE_CHECKING:
    from infer.engine.scheduler_output import Transfers
    from infer.engine.sequence import Sequence


class StepPlan:
    """Who is scheduled with how many tokens, and who had to give way."""

    def __init__(self, token_budget: int) -> None:
        self.token_budget = token_budget
        self.preempted: dict[Sequence, Sequence] = {}
        """Each with the one for whom it gave way."""
        self.unfinished_prefills: list[Sequence] = []
        """Scheduled, but not to their last token."""
        self.swapped_out: list[Sequence] = []
        self.swapped_in: list[Sequence] = []
        self.num_hit_tokens = 0
        self._scheduled: dict[Sequence, int] = {}

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        assert 0 < num_tokens <= self.token_budget, (sequence, num_tokens, self.token_budget)
        self._scheduled[sequence] = num_tokens
        self.token_budget -= num_tokens
        if sequence.num_computed_tokens + num_tokens < sequence.num_tokens:
            self.unfinished_prefills.append(sequence)

    def add_drafts(self, sequence: Sequence, num_tokens: int) -> None:
        """Behind the tokens of a sequence that is scheduled to its last one."""
        assert num_tokens <= self.token_budget, (sequence, num_tokens, self.token_budget)
        self._scheduled[sequence] += num_tokens
        self.token_budget -= num_tokens

    @property
    def is_empty(self) -> bool:
        return not self._scheduled

    def num_tokens_of(self, sequence: Sequence) -> int:
        """Of a sequence that may not be scheduled at all."""
        return self._scheduled.get(sequence, 0)

    def preempt(self, sequence: Sequence, beneficiary: Sequence) -> None:
        """Give the budget of a victim back, where it was already scheduled."""
        self.token_budget += self._scheduled.pop(sequence, 0)
        if sequence in self.unfinished_prefills:
            self.unfinished_prefills.remove(sequence)
        self.preempted[sequence] = beneficiary

    def scheduled(self) -> tuple[ScheduledSequence, ...]:
        return tuple(ScheduledSequence(sequence, num_tokens) for sequence, num_tokens in self._scheduled.items())

    def output(self, scheduled: tuple[ScheduledSequence, ...], transfers: Transfers) -> SchedulerOutput:
        return SchedulerOutput(
            scheduled,
            dict(self.preempted),
            self.num_hit_tokens,
            tuple(self.swapped_out),
            tuple(self.swapped_in),
            transfers,
        )
