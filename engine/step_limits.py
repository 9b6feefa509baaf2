"""What a step may hold at present: less than the settings allow while steps fail, and nothing where it is paused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infer.engine.config import EngineConfig


@dataclass(slots=True)
class StepLimits:
    """Changed by whoever judges how the steps go."""

    max_num_seqs: int
    max_num_batched_tokens: int

    @staticmethod
    def of(config: EngineConfig) -> StepLimits:
        return StepLimits(config.max_num_seqs, config.max_num_batched_tokens)


class Pause(Enum):
    """What a paused scheduler leaves out. Nothing is lost either way."""

    NOTHING = auto()
    ADMISSION = auto()
    """Finish what was begun, begin nothing: a graceful stop."""
    ALL = auto()
