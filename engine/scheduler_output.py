"""The plan of one step: decided by the scheduler, executed by the model runner without a decision of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infer.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """`num_tokens` tokens of `sequence`, from its first not yet computed one on, enter the model: its drafts too, where
    the step gets as far as these. To be asked before the step is booked."""

    sequence: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step reaches the sequence's last token, whose logits give the next."""
        return self.sequence.num_computed_tokens + self.num_tokens >= self.sequence.num_tokens

    @property
    def num_draft_tokens(self) -> int:
        return max(0, self.sequence.num_computed_tokens + self.num_tokens - self.sequence.num_tokens)


@dataclass(frozen=True, slots=True)
class Transfers:
    """Copies of whole blocks on the device, to host memory and back, each from and to by id.

    out, then within, then back, then the step, then filled
    """

    out: tuple[tuple[int, int], ...] = ()
    """Of blocks that the step may write over: of swapped sequences, and evicted prefixes."""
    within: tuple[tuple[int, int], ...] = ()
    """On the device, of blocks that one of several who hold them is about to write to."""
    back: tuple[tuple[int, int], ...] = ()
    """From host memory, also of what goes out in the same step."""
    filled: tuple[tuple[int, int], ...] = ()
    """Of blocks that the step fills."""


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """What one step computes. Blocks are already in the sequences' tables; a preempted sequence holds none."""

    scheduled: tuple[ScheduledSequence, ...] = ()
    preempted: Mapping[Sequence, Sequence] = field(default_factory=dict)
    """Each with the one for whom it gave way: itself where nobody served after it was left."""
    num_hit_tokens: int = 0
    """Tokens that sequences begun in this step need not compute."""
    swapped_out: tuple[Sequence, ...] = ()
    """Of the preempted, those whose blocks are copied to host memory."""
    swapped_in: tuple[Sequence, ...] = ()
    """Those that go on where they were swapped out."""
    transfers: Transfers = field(default_factory=Transfers)

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)
