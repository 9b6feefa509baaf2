"""What a run looks like at one instant; views pull it, the job never pushes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infer.engine.stats import EngineStats


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """Cheap to make: counters the job holds anyway, and the engine's own snapshot."""

    rows_done: int
    """Finished rows, failed ones included."""
    rows_failed: int
    rows_total: int | None
    """None while the input's length is not known."""
    seconds: float
    """Since the run began."""
    stats: EngineStats
    model: str
    input_name: str
    output_name: str
    completion_tokens_done: int = 0
    """Of the finished rows alone."""
    rows_saved: int | None = None
    """That no crash can take; None where nothing is saved."""
    rows_resumed: int = 0
    """Done in an earlier run."""
