"""run_job(): from a JobConfig to a published output, and the summary of how it came about.

check what needs no model -> take up what is saved -> load the model -> rows, saved as they are done -> publish
"""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

from infer.cli.errors import StandardOutputError, exit_code
from infer.cli.job_context import NOTHING_SAVED, JobContext
from infer.cli.job_engine import identify_model, load_engine
from infer.cli.job_plan import plan_job
from infer.cli.report import print_report
from infer.cli.resume import open_state, recover
from infer.cli.run_rows import RowsToRun, run_rows
from infer.cli.saved_job import SavedJob
from infer.cli.saving import StreamSaver
from infer.cli.stop_request import Stopped, StopRequest, stop_error
from infer.cli.terminal import open_console
from infer.io.stream_output import StreamOutput

if TYPE_CHECKING:
    from infer.cli.config import JobConfig
    from infer.cli.errors import CommandError
    from infer.cli.job_context import Identify, Load
    from infer.cli.job_plan import JobPlan
    from infer.cli.report import RunSummary


def run_job(config: JobConfig, load: Load = load_engine, identify: Identify = identify_model) -> RunSummary:
    """Take every row of the input through the model. Talks on standard error.

    A run that is stopped from outside, or gives up, returns as well: what is done is saved, and the exit code says so.

    Raises:
        UsageError, InputError, OutputNameError, OutputExistsError, ConfigError, FingerprintError, LockedError: the job
            cannot work; found before the model is loaded where that is possible.
        ModelError, StorageError, StateError: it can go no further.
        Stopped: it was stopped before any row was run.
    """
    plan = plan_job(config)
    if plan.output is None:
        with StopRequest(config.max_runtime) as stop:
            return _stream(JobContext(config, load, identify, open_console(sys.stderr), stop), plan)
    with (
        open_state(plan.output.path, config.state_dir, sys.argv) as state,
        StopRequest(config.max_runtime, before_exit=state.note_stop) as stop,
    ):
        context = JobContext(config, load, identify, open_console(sys.stderr), stop)
        recover(state, plan.output, config)
        return SavedJob(context, plan, plan.output, state).run()


def _stream(context: JobContext, plan: JobPlan) -> RunSummary:
    """To standard output, row by row: nothing is saved."""
    if sys.stdout is None:
        raise StandardOutputError("standard output is closed", "name a file with -o OUT.parquet")
    context.say(f"rows go to standard output: {NOTHING_SAVED}")
    seed = secrets.randbelow(2**32) if context.config.seed is None else context.config.seed
    saver = StreamSaver(StreamOutput(sys.stdout.buffer, plan.schema))
    error: CommandError | None = None
    try:
        if not run_rows(context, plan, context.load_engine(), saver, RowsToRun(), seed):
            error = context.too_many_errors(plan.source.num_rows)
    except Stopped as stopped:
        error = stop_error(stopped.cause)
        error.hint = NOTHING_SAVED
    if error is not None:
        context.say_error(error)
        return context.summary(exit_code(error))
    summary = context.summary(output=context.config.output)
    print_report(context.console, summary, context.counts.failures.counts())
    return summary
