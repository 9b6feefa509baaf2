"""StepExecutor: carries a plan out. Copies, batch, model, sampler; decides nothing.

Where steps overlap, a step is launched before the tokens of the one before are read, so that the device has something
to do while these are booked and the next step is planned:

    host     | plan 1 | launch 1 | plan 2 | launch 2, read 1 | book 1, plan 3 | launch 3, read 2 | ...
    device            |------ step 1 ------|------ step 2 ------|------ step 3 ------| ...

The tokens of step 1 go into step 2 on the device. That a sequence has ended is seen one step late: what it was given
meanwhile is dropped. Rows that are sampled with the help of the host, which has to know their tokens for it, keep their
step from overlapping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infer.engine.batch import build_batch
from infer.engine.host_staging import HostStaging
from infer.engine.sampled_ids import SampledIds
from infer.engine.step_sampling import sample_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Many

    import torch

    from infer.engine.batch import Batch
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
        self._stage = HostStaging(device)
        self._overlaps = config.overlaps_steps_on(device.type)
        self._timer = timer
        self._unread: SampledIds | None = None

    @property
    def pending(self) -> Many[Sequence]:
        """Of which the last step has sampled a token that is yet to be read."""
        return () if self._unread is None else self._unread.sequences

    def execute(self, output: SchedulerOutput) -> dict[Sequence, Run]:
        """Run the plan. Returns what was sampled and is read: of the step before, where that was left, and of this one,
        unless its tokens are now `pending`; the tokens of one sequence in their order."""
        with self._timer.phase("execute"):
            self.runner.copy_before(output)
        if not output.scheduled:
            return self._read()
        with self._timer.phase("prepare"):
            self._stage.begin_step()
            batch = build_batch(
                output,
                self._config.block_size,
                self._device,
                stage=self._stage,
                shared_prefix_attention=self._config.shared_prefix_attention,
            )
            self._fill_in(batch)
        with self._timer.phase("execute"):
            logits = self.runner.execute(batch)
            self.runner.copy_after(output)
        with self._timer.phase("sample"):
            return self._sample(logits, batch)

    def reset(self) -> None:
        """Forget what is not read: a step has failed."""
        self._unread = None

    def _fill_in(self, batch: Batch) -> None:
        if not batch.pending:
            return
        assert self._unread is not None, batch.pending
        places = np.array([place for place, _ in batch.pending], np.int64)
        sources = np.array(self._unread.places_of([sequence for _, sequence in batch.pending]), np.int64)
        self._unread.fill_in(batch, self._stage(places), self._stage(sources))

    def _sample(self, logits: torch.Tensor, batch: Batch) -> dict[Sequence, Run]:
        rows = self._rows_of(batch.sampling)
        if self._overlaps and all(_is_left_to_the_device(sequence, of_it) for sequence, of_it in rows.items()):
            token_ids = self._sampler.choose(
                logits,
                [row for (row,) in rows.values()],
                [sequence.num_output_tokens for sequence in rows],
                self._stage,
            )
            self._stage.end_step()
            # This step's are on their way before the device is waited for.
            unread = SampledIds(tuple(rows), token_ids)
            runs = self._read()
            self._unread = unread
            return runs
        self._stage.end_step()
        runs = self._read()
        for sequence, run in sample_runs(self._sampler, logits, rows).items():
            runs[sequence] = runs.get(sequence, []) + run
        return runs

    def _read(self) -> dict[Sequence, Run]:
        unread, self._unread = self._unread, None
        return {} if unread is None else unread.read()


def _is_left_to_the_device(sequence: Sequence, rows: Many[SamplingRow]) -> bool:
    """Whether its next token is chosen from nothing but the logits: and is one, of a sequence that is not forked by it,
    as those of several answers are by their first."""
    return len(rows) == 1 and sequence.num_branches == 1 and not sequence.draft_token_ids and rows[0].is_left_to_device
