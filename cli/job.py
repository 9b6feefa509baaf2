"""run_job(): from a JobConfig to a published output, and the summary of how it came about.

check what needs no model -> load the model -> fit its cache to the first rows -> loop over all -> publish
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from rich.text import Text

from infer.cli.display import open_view
from infer.cli.errors import ExitCode, UsageError
from infer.cli.job_rows import JobRows, RowSampling, RunCounts
from infer.cli.prompt import PromptBuilder
from infer.cli.report import RunSeconds, RunSummary, print_report
from infer.cli.result import ResultBuilder, ResultColumns, result_schema
from infer.cli.row_loop import EngineProtocol, RequestSize, RowLoop, Window
from infer.cli.row_params import PRIORITY, RowParams
from infer.cli.run_snapshot import RunSnapshot
from infer.cli.stop_request import Stopped, StopRequest, stop_error
from infer.cli.terminal import open_console, safe
from infer.cli.trace import TRACE_SCHEMA, trace_record
from infer.engine.sampling_params import describe
from infer.io.errors import InputError
from infer.io.publish import OutputFile
from infer.io.reader import open_source
from infer.io.schema import output_schema
from infer.io.table_file import TableFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from rich.console import Console

    from infer.cli.config import JobConfig
    from infer.cli.prompt import PromptSpec
    from infer.engine.config import EngineConfig
    from infer.engine.sampling_params import SamplingParams
    from infer.engine.stats import EngineStats
    from infer.engine.step_record import StepRecord
    from infer.engine.tokenizer import Tokenizer
    from infer.io.reader import Source

    Say = Callable[[str], None]


class JobEngine(EngineProtocol, Protocol):
    """What a job needs of `infer.engine.engine.Engine`."""

    model_name: str
    tokenizer: Tokenizer
    default_sampling_params: SamplingParams

    @property
    def last_step(self) -> StepRecord | None: ...

    def describe(self) -> list[str]: ...

    def check_sampling_params(self, params: SamplingParams) -> None: ...

    def fit_cache(self, num_requests: int | None, max_request_tokens: int | None) -> str: ...

    def stats(self) -> EngineStats: ...


def load_engine(config: EngineConfig, say: Say) -> JobEngine:
    """The real one."""
    # Imported here: a job that cannot work says so before torch is loaded.
    from infer.engine.engine import Engine

    return Engine(config, say)


def run_job(config: JobConfig, load: Callable[[EngineConfig, Say], JobEngine] = load_engine) -> RunSummary:
    """Take every row of the input through the model. Talks on standard error.

    Raises:
        UsageError, InputError, OutputNameError, OutputExistsError, ConfigError: the job cannot work; found before the
            model is loaded where that is possible.
        ModelError, StorageError: it can go no further.
        StoppedEarlyError, InterruptError: somebody asked to stop.
    """
    console = open_console(sys.stderr)
    counts = RunCounts()
    try:
        with StopRequest(config.max_runtime) as stop:
            summary = _run(config, load, counts, console, stop)
    except Stopped as stopped:
        raise stop_error(stopped.cause, num_rows_saved=0) from stopped
    print_report(console, summary, counts.failures.counts())
    return summary


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job that passed all checks that need no model."""

    source: Source
    prompt: PromptSpec
    row_params: RowParams | None
    has_priority: bool
    result_columns: ResultColumns
    output: OutputFile
    trace: TableFile | None
    columns: tuple[str, ...]
    """What is read of the input: what is kept, and what the requests are made from."""


def plan_job(config: JobConfig) -> JobPlan:
    """Open the input and check the job against its columns.

    Raises:
        UsageError, InputError, OutputNameError, OutputExistsError: the job cannot work.
    """
    source = open_source(config.inputs, limit=config.limit)
    if not source.schema.names:
        raise InputError(
            f"the input has no columns: {' '.join(config.inputs)}", "it is empty, or no line of it is a JSON object"
        )
    prompt = config.prompt.resolve(source.schema)
    row_params = RowParams(source.schema.names) if config.row_params else None
    param_columns = () if row_params is None else row_params.columns
    has_priority = config.engine.scheduling_policy == "priority"
    if has_priority and PRIORITY not in source.schema.names:
        raise UsageError(f"--scheduling-policy priority needs a column of this name: {PRIORITY}")
    result_columns = _result_columns(config.sampling, param_columns)
    schema = output_schema(source.schema, config.keep, result_schema(result_columns), config.prefix)
    return JobPlan(
        source=source,
        prompt=prompt,
        row_params=row_params,
        has_priority=has_priority,
        result_columns=result_columns,
        output=OutputFile(config.output, schema, inputs=config.inputs, overwrite=config.overwrite),
        trace=None if config.trace is None else _trace_file(config, config.trace),
        columns=tuple(dict.fromkeys([*schema.kept.names, *prompt.columns, *param_columns, *[PRIORITY] * has_priority])),
    )


def _result_columns(sampling: Mapping[str, object], param_columns: Collection[str]) -> ResultColumns:
    """They are fixed before row 0: what rows can ask for by a column counts as asked for."""
    return ResultColumns(
        logprobs="logprobs" in sampling or "logprobs" in param_columns,
        several=sampling.get("n", 1) != 1 or "n" in param_columns,
        scores=any(name in sampling or name in param_columns for name in ("best_of", "beam_width")),
    )


def _trace_file(config: JobConfig, path: str) -> TableFile:
    if Path(path).resolve() == Path(config.output).resolve():
        raise UsageError(f"--trace and the output have one name: {path}")
    return TableFile(path, TRACE_SCHEMA, inputs=config.inputs, overwrite=config.overwrite)


def _run(
    config: JobConfig,
    load: Callable[[EngineConfig, Say], JobEngine],
    counts: RunCounts,
    console: Console,
    stop: StopRequest,
) -> RunSummary:
    def say(line: str) -> None:
        with stop.undisturbed():
            console.print(Text(safe(line)), soft_wrap=True)

    begin = perf_counter()
    plan = plan_job(config)
    with plan.trace or nullcontext() as trace, plan.output:
        engine = load(config.engine, say)
        loaded = perf_counter()
        defaults = replace(engine.default_sampling_params, **config.sampling)
        engine.check_sampling_params(defaults)
        for line in (*plan.source.notes, *engine.describe(), f"sampling: {describe(defaults)}, seed {config.seed}"):
            say(line)
        handler = JobRows(
            PromptBuilder(plan.prompt, engine.tokenizer),
            RowSampling(defaults, plan.row_params, config.seed, plan.has_priority),
            ResultBuilder(engine.tokenizer, plan.result_columns),
            plan.output,
            counts,
        )
        loop = RowLoop(plan.source.rows(plan.columns), engine, handler, Window(config.engine.max_num_seqs))
        largest = loop.peek()
        say(_fit_cache(engine, plan.source.num_rows, largest))

        def snapshot() -> RunSnapshot:
            return RunSnapshot(
                rows_done=counts.rows_done,
                rows_failed=counts.rows_failed,
                rows_total=plan.source.num_rows,
                seconds=perf_counter() - loaded,
                stats=engine.stats(),
                model=engine.model_name,
                input_name=" ".join(config.inputs),
                output_name=config.output,
                completion_tokens_done=counts.generated_tokens,
            )

        with open_view(console, snapshot, stop.undisturbed) as view, stop.graceful():

            def on_step() -> None:
                if trace is not None and engine.last_step is not None:
                    trace.add(trace_record(engine.last_step, perf_counter() - loaded))
                view.update()
                stop.raise_if_requested()

            loop.run(on_step)
    end = perf_counter()
    seconds = RunSeconds(load=loaded - begin, run=end - loaded, total=end - begin)
    return _summary(config, counts, engine.stats(), seconds)


def _fit_cache(engine: JobEngine, num_rows: int | None, largest: RequestSize | None) -> str:
    if largest is None:
        # Without any request at all, the least cache that there can be.
        return engine.fit_cache(0, None)
    return engine.fit_cache(num_rows and num_rows * largest.num_sequences, largest.num_tokens)


def _summary(config: JobConfig, counts: RunCounts, stats: EngineStats, seconds: RunSeconds) -> RunSummary:
    return RunSummary(
        rows=counts.rows_done,
        rows_failed=counts.rows_failed,
        rows_resumed=0,
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        cached_tokens=counts.cached_tokens,
        preemptions=stats.num_preemptions_total,
        tokens_wasted=stats.tokens_wasted_total,
        seconds=seconds,
        output=config.output,
        exit_code=ExitCode.ROW_ERRORS if counts.rows_failed and not config.allow_errors else ExitCode.DONE,
        swaps=stats.num_swaps_total,
        cached_tokens_by_tier=stats.prefix_cache_hits_by_tier,
    )
