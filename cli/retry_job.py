"""retry_job(): from a finished run to its output with the failed rows run again.

lock, take up the run -> its flags again -> load the model -> keep the other rows -> the ordinary job
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infer.cli.config import job_config
from infer.cli.errors import UsageError
from infer.cli.figures import count, counted
from infer.cli.find_state import find_state, is_state
from infer.cli.job_context import JobContext
from infer.cli.job_engine import identify_model, load_engine
from infer.cli.job_plan import plan_job
from infer.cli.retry_rows import ALL_CODES, RetryRows, check_output
from infer.cli.run import run_command
from infer.cli.saved_job import SavedJob
from infer.cli.stop_request import StopRequest
from infer.cli.terminal import open_console
from infer.io.errors import InputError, StateError
from infer.io.output import open_output
from infer.io.paths import STANDARD_INPUT
from infer.io.run_state import RunState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infer.cli.config import JobConfig
    from infer.cli.job_context import Identify, Load
    from infer.cli.report import RunSummary
    from infer.io.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """What a retry was asked to do."""

    output: str
    codes: frozenset[str] | None
    """None: rows that failed with any."""
    state_dir: str | None = None
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Flags of the run that are not what they were, by parameter name."""


def parse_codes(text: str) -> frozenset[str] | None:
    """`oom,timeout`, or `all` as None.

    Raises:
        UsageError: a name is empty.
    """
    codes = frozenset(code.strip() for code in text.split(","))
    if "" in codes:
        raise UsageError(f"--codes takes names separated by commas, or all: {text!r}")
    return None if ALL_CODES in codes else codes


def retry_job(config: RetryConfig, load: Load = load_engine, identify: Identify = identify_model) -> RunSummary:
    """Run failed rows again and publish the output anew. Talks on standard error.

    A retry that was begun is continued, with the rows that it was begun with.

    Raises:
        InputError: nothing is saved, the run has not ended, or its input or output is gone.
        VerificationError: the output is not what the run has written.
        FingerprintError: the input or the model is not what it was.
        And what `run_job` raises.
    """
    directory = find_state(config.output, config.state_dir)
    with RunState(directory, sys.argv) as state:
        state.recover()
        run = _ended_run(state, config.output)
        name = _output_name(config.output, run)
        job = _job(run, name, config.changed)
        with StopRequest(job.max_runtime, before_exit=state.note_stop) as stop:
            context = JobContext(job, load, identify, open_console(sys.stderr), stop)
            retry = None
            if state.progress.final is not None:
                retry = RetryRows(config.codes)
                check_output(state, open_output(name))
                if not retry.select(state.progress.failures):
                    return _nothing_to_do(context, state, config.codes)
            plan = plan_job(job)
            assert plan.output is not None
            return SavedJob(context, plan, plan.output, state, retry).run()


def _ended_run(state: RunState, output: str) -> RunRecord:
    run, progress = state.run, state.progress
    if run is None:
        raise InputError(f"nothing is saved of a run with this output: {output}", "a retry follows on infer run")
    if progress.final is None and progress.replaced is None:
        raise InputError(
            f"the run has not ended, rows saved: {count(progress.num_rows)} of {count(run.num_rows)}",
            "run the same command again first; when all rows are done, retry those that failed",
        )
    if STANDARD_INPUT in run.job.get("inputs", ()):
        raise InputError(
            "the run has read standard input, which is gone: it cannot be retried",
            "save the rows to a file, and run that",
        )
    return run


def _output_name(output: str, run: RunRecord) -> str:
    if is_state(Path(output)):
        return run.output
    # The name of a directory, which may be gone for the instant between two renames.
    return f"{output}/" if run.output.endswith("/") and not output.endswith("/") else output


def _job(run: RunRecord, output: str, changed: Mapping[str, Any]) -> JobConfig:
    parameters = signature(run_command).parameters.values()
    defaults = {each.name: None if each.default is Parameter.empty else each.default for each in parameters}
    del defaults["context"]
    unknown = run.job.keys() - defaults.keys()
    if unknown or not run.job.get("inputs"):
        names = ", ".join(sorted(unknown)) or "no input"
        raise StateError(
            f"the run was asked for what this infer does not know: {names}", "retry it with the infer that ran it"
        )
    return job_config({**defaults, **run.job, "allow_errors": False, "output": output, **changed})


def _nothing_to_do(context: JobContext, state: RunState, codes: frozenset[str] | None) -> RunSummary:
    assert state.run is not None
    failures = state.progress.failures
    context.counts.resume(state.run.num_rows, failures)
    asked = "" if codes is None else f" with {', '.join(sorted(codes))}"
    listed = ", ".join(f"{count(number)} {code}" for code, number in failures.items())
    context.say(
        f"nothing to retry: of {counted(state.run.num_rows, 'row')} none failed{asked}"
        + (f"; failed are {listed}" if failures else "")
    )
    if failures:
        context.say("hint: name other codes with --codes, or all")
    return context.summary(output=context.config.output)
