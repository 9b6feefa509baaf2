"""StepExecutor: carries a plan out. Copies, batch, model, sampler; decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.batch import build_batch
from infer.engine.step_sampling import sample_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Many

    import torch

    from infer.engine.config import EngineConfig
    from infer.engine.model_runner import ModelRunner
    from infer.engine.phase_timer import PhaseTimer
    from infer.engine.sampler import Sampler
    from infer.engine.sampling_row import SamplingRow
    from infer.engine.scheduler_output import SchedulerOutput
    from infer.engine.sequence import Sequence
    from infer.engine.speculative import Run

    RowsOf = Callable[[Many[Sequence]], Mapping[Sequence, Many[SamplingRow]]]


class StepExecutor:
    """`rows_of` tells what is sampled of sequences that have reached their last token."""

    def __init__(
        self,
        runner: ModelRunner,
        sampler: Sampler,
        rows_of: RowsOf,
        config: EngineConfig,
        device: torch.device,
        timer: PhaseTimer,
    ) -> None:
        self.runner = runner
        self._sampler = sampler
        self._rows_of = rows_of
        self._config = config
        self._device = device
        self._timer = timer

    def execute(self, output: SchedulerOutput) -> dict[Sequence, Run]:
        """Run the plan. Returns what was sampled for each sequence that has reached its last token."""
        with self._timer.phase("execute"):
            self.runner.copy_before(output)
        if not output.scheduled:
            return {}
        with self._timer.phase("prepare"):
            batch = build_batch(
                output,
                self._config.block_size,
                self._device,
                shared_prefix_attention=self._config.shared_prefix_attention,
            )
        with self._timer.phase("execute"):
            logits = self.runner.execute(batch)
            self.runner.copy_after(output)
        with self._timer.phase("sample"):
            return sample_runs(self._sampler, logits, self._rows_of(batch.sampling))
