"""How much of a step a prompt may take, and how many prompts may be under way, so that short ones pass long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infer.engine.config import EngineConfig
    from infer.engine.sequence import Sequence
    from infer.engine.step_plan import StepPlan


class PrefillLimits:
    """`long_prefill_token_threshold`, `max_num_partial_prefills` and `max_long_partial_prefills`; 0 is no limit.

    A prefill is long where more than the threshold is left of it. It is partial in a step that does not end it.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._threshold = config.long_prefill_token_threshold
        self._max_partial = config.max_num_partial_prefills
        self._max_long_partial = config.max_long_partial_prefills

    def count_long(self, running: Iterable[Sequence]) -> int:
        """Running sequences whose prefill is long."""
        return sum(map(self._is_long, running)) if self._threshold else 0

    def cut(self, num_tokens: int, token_budget: int, num_long: int) -> int:
        """What a step computes of `num_tokens`. Of a long prefill at most the threshold, and where several are under
        way a fair share of the budget: `num_long` counts those that have not had theirs, this one included."""
        if self._threshold and num_tokens > self._threshold:
            num_tokens = min(self._threshold, -(-token_budget // max(1, num_long)))
        return min(num_tokens, token_budget)

    def admits_partial(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Whether `sequence`, which waits, may begin with a chunk that does not end its prefill."""
        partial = plan.unfinished_prefills
        if self._max_partial and len(partial) >= self._max_partial:
            return False
        if not self._max_long_partial or not self._is_long(sequence):
            return True
        return sum(map(self._is_long, partial)) < self._max_long_partial

    def _is_long(self, sequence: Sequence) -> bool:
        return sequence.num_tokens - sequence.num_computed_tokens > self._threshold
