"""The loop of a job: rows into the engine, records to the saver, and what is shown meanwhile."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING

from infer.cli.display import open_view
from infer.cli.job_rows import JobRows, RowSampling
from infer.cli.prompt import PromptBuilder
from infer.cli.result import ResultBuilder
from infer.cli.row_loop import RowLoop
from infer.cli.row_window import Window
from infer.cli.run_snapshot import RunSnapshot
from infer.cli.trace import trace_record
from infer.engine.sampling_params import describe
from infer.io.row import Row, RowError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from infer.cli.config import JobConfig
    from infer.cli.job_context import JobContext
    from infer.cli.job_engine import JobEngine
    from infer.cli.job_plan import JobPlan
    from infer.cli.row_window import RequestSize
    from infer.cli.saving import Saver
    from infer.engine.phase_timer import PhaseTimer

_MAX_NEAR_ROWS = 1024
"""Between the oldest that is not done and the newest."""


@dataclass(frozen=True, slots=True)
class RowsToRun:
    """Which rows a run has before it."""

    done: Collection[int] = ()
    """Not to be run: they are saved."""
    alone: frozenset[int] = frozenset()
    """To be run one at a time, after the others."""
    poison: frozenset[int] = frozenset()
    """Not to be run: they have brought the process down before."""
    num_deaths: int = 0
    """Of the process, in this run so far."""

    def select(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if row.index in self.poison:
                yield Row(row.index, row.block, row.offset, RowError("poison", _POISON))
            elif row.index not in self.done:
                yield row


_ROWS_AT_ONCE = 64
"""That are read before the first of them is asked for: as many as the loop asks for."""

_POISON = "the process died twice while it ran nothing but this row"


def run_rows(context: JobContext, plan: JobPlan, engine: JobEngine, saver: Saver, to_run: RowsToRun, seed: int) -> bool:
    """Take the rows through the engine. False where so many have failed that it gave up.

    Raises:
        Stopped: a stop was asked for.
        InputError, StorageError, ModelError: it can go no further.
    """
    config, counts, stop = context.config, context.counts, context.stop
    begin = perf_counter()
    defaults = replace(engine.default_sampling_params, **config.sampling)
    engine.check_sampling_params(defaults)
    for line in (*plan.source.notes, *engine.describe(), f"sampling: {describe(defaults)}, seed {seed}"):
        context.say(line)
    handler = JobRows(
        PromptBuilder(plan.prompt, engine.tokenizer),
        RowSampling(defaults, plan.row_params, seed, plan.has_priority, config.seed_by),
        ResultBuilder(engine.tokenizer, plan.result_columns),
        saver,
        counts,
        context.timer,
    )
    is_near = saver.num_saved is None or to_run.num_deaths > 0
    window = near_window(config) if is_near else far_window(config)
    rows = to_run.select(_timed(plan.source.rows(plan.columns), context.timer))
    loop = RowLoop(rows, engine, handler, window, alone=to_run.alone)
    context.say(_fit_cache(engine, plan.source.num_rows - len(to_run.done), loop.peek()))

    def snapshot() -> RunSnapshot:
        return RunSnapshot(
            rows_done=counts.rows_done,
            rows_failed=counts.rows_failed,
            rows_total=plan.source.num_rows,
            seconds=perf_counter() - begin,
            stats=engine.stats(),
            model=engine.model_name,
            input_name=" ".join(config.inputs),
            output_name=config.output,
            completion_tokens_done=counts.generated_tokens,
            rows_saved=saver.num_saved,
            rows_resumed=counts.rows_resumed,
        )

    with (
        plan.trace or nullcontext() as trace,
        open_view(context.console, snapshot, stop.undisturbed) as view,
        stop.graceful(),
    ):
        traced = None

        def on_step() -> bool:
            nonlocal traced
            if trace is not None and engine.last_step is not None and engine.last_step is not traced:
                traced = engine.last_step
                trace.add(trace_record(traced, perf_counter() - begin))
            with context.timer.phase("write"):
                saver.save_if_due()
            with context.timer.phase("show"):
                view.update()
            stop.raise_if_requested()
            return not context.has_too_many_errors(plan.source.num_rows)

        loop.run(on_step)
        with context.timer.phase("write"):
            saver.save()
    return not context.has_too_many_errors(plan.source.num_rows)


def far_window(config: JobConfig) -> Window:
    """How far rows are read ahead as a rule."""
    return Window(
        config.engine.max_num_seqs,
        order=config.order,
        max_step_tokens=config.engine.max_num_batched_tokens,
        block_size=config.engine.block_size,
    )


def near_window(config: JobConfig) -> Window:
    """The same, where rows are held until those before them are done, or would all be suspected if the process died
    once more."""
    return replace(far_window(config), max_pending_rows=_MAX_NEAR_ROWS)


def _timed(rows: Iterator[Row], timer: PhaseTimer) -> Iterator[Row]:
    while True:
        with timer.phase("read"):
            some = list(islice(rows, _ROWS_AT_ONCE))
        if not some:
            return
        yield from some


def _fit_cache(engine: JobEngine, num_rows: int, largest: RequestSize | None) -> str:
    if largest is None:
        # Without any request at all, the least cache that there can be.
        return engine.fit_cache(0, None)
    return engine.fit_cache(num_rows * largest.num_sequences, largest.num_tokens)
