"""The plan of one step: decided by the scheduler, executed by the model runner without a decision of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infer.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """`num_tokens` tokens of `sequence`, from its first not yet computed one on, enter the model."""

    sequence: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step reaches the sequence's last token, whose logits give the next."""
        return self.sequence.num_computed_tokens + self.num_tokens == self.sequence.num_tokens


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """What one step computes. Blocks are already in the sequences' tables; a preempted sequence holds none."""

    scheduled: tuple[ScheduledSequence, ...] = ()
    preempted: Mapping[Sequence, Sequence] = field(default_factory=dict)
    """Each with the one for whom it gave way: itself where nobody served after it was left."""
    copies: tuple[tuple[int, int], ...] = ()
    """Ids of blocks, from and to, that are copied before the step: written to by one of several who held them."""
    num_hit_tokens: int = 0
    """Tokens that sequences begun in this step need not compute."""

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)
