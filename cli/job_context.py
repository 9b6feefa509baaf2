"""What all parts of one job share."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from rich.text import Text

from infer.cli.errors import ExitCode, TooManyErrorsError, error_message
from infer.cli.figures import count, counted
from infer.cli.job_rows import RunCounts
from infer.cli.report import RunSeconds, RunSummary
from infer.cli.terminal import safe
from infer.engine.phase_timer import PhaseTimer
from infer.engine.stats import EngineStats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from infer.cli.config import JobConfig
    from infer.cli.errors import CommandError
    from infer.cli.job_engine import JobEngine, Say
    from infer.cli.stop_request import StopRequest
    from infer.engine.config import EngineConfig

    Load = Callable[[EngineConfig, Say], JobEngine]
    Identify = Callable[[EngineConfig, Say], Mapping[str, object]]


NOTHING_SAVED = "nothing is saved, a run that is stopped begins again at the first row"
"""Of a run to standard output."""


@dataclass(slots=True)
class JobContext:
    """The job's settings, who can be talked to, and how far it is."""

    config: JobConfig
    load: Load
    identify: Identify
    console: Console
    stop: StopRequest
    counts: RunCounts = field(default_factory=RunCounts)
    timer: PhaseTimer = field(default_factory=PhaseTimer)
    """Of what the job does around the engine: read, render, write, show, publish."""
    engine: JobEngine | None = None
    began_at: float = field(default_factory=perf_counter)
    loaded_at: float | None = None

    def say(self, line: str) -> None:
        """One line to the user; control characters in it are shown, not obeyed."""
        with self.stop.undisturbed():
            self.console.print(Text(safe(line)), soft_wrap=True)

    def say_error(self, error: CommandError) -> None:
        """Its message and its hint, each on a line."""
        with self.stop.undisturbed():
            self.console.print(Text(error_message(error)), soft_wrap=True)

    def has_too_many_errors(self, num_rows: int) -> bool:
        """Of so many rows more have failed than may."""
        most = self.config.error_limit.most(num_rows)
        return most is not None and self.counts.rows_failed > most

    def too_many_errors(self, num_rows: int, num_saved: int | None = None) -> TooManyErrorsError:
        """What to say where it gave up; without a number, nothing is saved."""
        limit = self.config.error_limit
        message = (
            f"{counted(self.counts.rows_failed, 'row')} failed, {limit.flag} allows {count(limit.most(num_rows) or 0)}"
        )
        if num_saved is None:
            return TooManyErrorsError(message, "run again without it; with -o NAME, what is done is saved")
        return TooManyErrorsError(
            f"{message}; rows saved: {count(num_saved)}",
            "run again without it to go on; failed rows are saved as such, `infer retry` runs them again",
        )

    def load_engine(self) -> JobEngine:
        self.engine = self.load(self.config.engine, self.say)
        self.loaded_at = perf_counter()
        return self.engine

    def summary(self, exit_code: ExitCode | None = None, *, output: str | None = None) -> RunSummary:
        """How it came out; without an exit code, as the rows did."""
        counts, end = self.counts, perf_counter()
        loaded_at = end if self.loaded_at is None else self.loaded_at
        stats = EngineStats() if self.engine is None else self.engine.stats()
        if exit_code is None:
            is_clean = counts.rows_failed == 0 or self.config.allow_errors
            exit_code = ExitCode.DONE if is_clean else ExitCode.ROW_ERRORS
        return RunSummary(
            rows=counts.rows_done,
            rows_failed=counts.rows_failed,
            rows_resumed=counts.rows_resumed,
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens,
            cached_tokens=counts.cached_tokens,
            preemptions=stats.num_preemptions_total,
            tokens_wasted=stats.tokens_wasted_total,
            seconds=RunSeconds(load=loaded_at - self.began_at, run=end - loaded_at, total=end - self.began_at),
            output=output,
            exit_code=exit_code,
            swaps=stats.num_swaps_total,
            cached_tokens_by_tier=stats.prefix_cache_hits_by_tier,
            rows_deduplicated=counts.rows_deduplicated,
            phases={**self.timer.seconds, **stats.seconds},
        )
