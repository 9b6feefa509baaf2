"""Who gives way when there is no room, and what becomes of what it has computed.

Who came last has computed little, and whoever is preempted frees about as much as it loses; so looking for the least
loss finds small victims, and needs more of them. `benchmarks/scheduler.py` compares the two.

A sequence may only be preempted for one that is served before it: of a smaller priority, or of the same and earlier
come. So the first of all is never a victim, and ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from infer.engine.config import PreemptionMode, PreemptionVictim
    from infer.engine.cost_model import CostModel
    from infer.engine.sequence import Sequence

Rank = tuple[int, int, int]
"""Class, arrival of the request, and which of its sequences; the smaller is served first."""

RANKS: dict[str, Callable[[Sequence], Rank]] = {
    "fcfs": lambda sequence: (0, sequence.arrival, sequence.branch_index),
    "priority": lambda sequence: (sequence.request.priority, sequence.arrival, sequence.branch_index),
}
"""By scheduling policy."""


class VictimChooser:
    """Chooses among running sequences."""

    def __init__(self, scheduling_policy: str, preemption_victim: PreemptionVictim, block_size: int) -> None:
        self.rank = RANKS[scheduling_policy]
        self._by_waste = preemption_victim == "least-waste"
        self._block_size = block_size

    def choose(self, running: Iterable[Sequence], beneficiary: Sequence) -> Sequence | None:
        """Whom to preempt for `beneficiary`; None where all others are served before it."""
        rank = self.rank(beneficiary)
        behind = [sequence for sequence in running if self.rank(sequence) > rank]
        return max(behind, key=self._order) if behind else None

    def strictly_lower(self, running: Iterable[Sequence], beneficiary: Sequence) -> list[Sequence]:
        """Those of a lower class, whatever their arrival, the first victim first. A sequence whose blocks of this very
        step are shared already is needed by who shares them."""
        lower = [
            sequence
            for sequence in running
            if self.rank(sequence)[0] > self.rank(beneficiary)[0] and not self._is_needed(sequence)
        ]
        return sorted(lower, key=self._order, reverse=True)

    def _order(self, sequence: Sequence) -> tuple[int, int, int, int]:
        priority, arrival, branch = self.rank(sequence)
        return priority, -num_lost_tokens(sequence, self._block_size) if self._by_waste else 0, arrival, branch

    def _is_needed(self, sequence: Sequence) -> bool:
        planned = sequence.block_table[sequence.num_computed_tokens // self._block_size :]
        return any(block.ref_cnt > 1 for block in planned)


class ModeChooser:
    """`preemption_mode`: whether a victim's blocks are copied to host memory or its tokens computed again."""

    def __init__(self, mode: PreemptionMode, cost_model: CostModel | None, block_size: int) -> None:
        """Without a cost model `auto` swaps: a copy is cheaper than a computation nearly everywhere."""
        self._mode = mode
        self._cost_model = cost_model
        self._block_size = block_size

    def swaps(self, sequence: Sequence) -> bool:
        """Whether it is better to swap `sequence`, where the host has room for it."""
        if self._mode != "auto" or self._cost_model is None:
            return self._mode != "recompute"
        # What others hold will still be there, and need neither come back nor be computed again.
        num_lost = num_lost_tokens(sequence, self._block_size)
        copying = self._cost_model.copy_seconds(sequence.num_computed_tokens + num_lost)
        return copying < self._cost_model.recompute_seconds(num_lost)


def num_lost_tokens(sequence: Sequence, block_size: int) -> int:
    """Computed tokens that nobody else holds."""
    num_shared = 0
    for block in sequence.block_table[sequence.num_passed_blocks :]:
        if block.ref_cnt == 1:
            break
        num_shared += 1
    return max(0, sequence.num_computed_tokens - num_shared * block_size)
