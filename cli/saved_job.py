"""A job whose rows are saved as they are done, so that it can be taken up again: to a file or a directory."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from infer.cli.errors import CommandError, exit_code
from infer.cli.figures import count, counted
from infer.cli.job_fingerprint import LOADED, job_fingerprint, versions
from infer.cli.report import print_report
from infer.cli.resume import changed, take_up
from infer.cli.retry_rows import job_changed, retry_hint
from infer.cli.run_rows import RowsToRun, run_rows
from infer.cli.saving import RowSaver
from infer.cli.stop_request import Stopped, stop_error
from infer.engine.errors import EngineError
from infer.io.errors import DataError, StorageError
from infer.io.input_content import InputContent
from infer.io.output_directory import OutputDirectory
from infer.io.output_record import OutputRecord, output_columns
from infer.io.publish import publish
from infer.io.run_record import RunRecord, now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infer.cli.job_context import JobContext
    from infer.cli.job_plan import JobPlan
    from infer.cli.report import RunSummary
    from infer.cli.retry_rows import RetryRows
    from infer.io.fingerprint import Fingerprint
    from infer.io.output import Output
    from infer.io.run_state import RunState


class SavedJob:
    """`state` is locked, and taken up; `retry` says which rows of a run that has ended are to be run again."""

    def __init__(
        self, context: JobContext, plan: JobPlan, output: Output, state: RunState, retry: RetryRows | None = None
    ) -> None:
        self._context = context
        self._plan = plan
        self._output = output
        self._state = state
        self._retry = retry

    def run(self) -> RunSummary:
        """See `run_job`."""
        context, state, counts = self._context, self._state, self._context.counts
        self._content = InputContent(self._plan.source.contents())
        self._model = context.identify(context.config.engine, context.say)
        fingerprint = self._fingerprint()
        done = None if self._retry is not None else take_up(state, self._output, fingerprint, context.config)
        for line in state.notes:
            context.say(line)
        if done is not None:
            counts.resume(done.num_rows, done.failures)
            context.say(f"already done: {context.config.output}")
            return self._report()
        if self._retry is not None:
            self._begin_retry(self._retry, fingerprint)
        elif state.run is not None:
            counts.resume(len(state.saved), state.progress.failures)
            context.say(f"resuming: {count(counts.rows_resumed)} of {counted(self._plan.source.num_rows, 'row')} saved")
        try:
            if not self._run_rows(fingerprint):
                return self._give_up()
            with context.timer.phase("publish"):
                self._publish(fingerprint)
        except Stopped as stopped:
            state.note_stop(stopped.cause.name)
            return self._report_stop(stop_error(stopped.cause, state.progress.num_rows))
        except (DataError, EngineError, CommandError):
            # The disk, the input, the model: no row's fault.
            state.note_stop("error")
            raise
        return self._report()

    def _fingerprint(self, loaded: Mapping[str, str] | None = None) -> Fingerprint:
        return job_fingerprint(self._context.config, self._plan, self._content.digests, self._model, loaded)

    def _begin_retry(self, retry: RetryRows, fingerprint: Fingerprint) -> None:
        run, failures = self._state.run, self._state.progress.failures
        assert run is not None
        changes = run.fingerprint.hard_changes(fingerprint, unknown=LOADED)
        if changes:
            raise job_changed(changes)
        self._context.counts.resume(run.num_rows - sum(retry.select(failures).values()), retry.keep(failures))
        self._context.say(retry.describe(run.num_rows, failures))

    def _run_rows(self, fingerprint: Fingerprint) -> bool:
        """Run what is not saved. False where so many rows have failed that it gave up."""
        context, state = self._context, self._state
        if len(state.saved) == self._plan.source.num_rows:
            if state.run is None:
                self._begin_run(fingerprint)
            return True
        if context.has_too_many_errors(self._plan.source.num_rows):
            return False
        engine = context.load_engine()
        loaded = self._fingerprint(engine.identity())
        if state.run is None:
            self._begin_run(loaded)
        assert state.run is not None
        changes = state.run.fingerprint.hard_changes(loaded)
        if changes:
            raise job_changed(changes) if self._retry is not None else changed(changes, len(state.saved))
        if self._retry is not None:
            # Not before the model is there, and is the same: until here nothing has changed.
            self._retry.reopen(state, self._output, self._plan.schema)
        for change in state.run.fingerprint.soft_changes(loaded):
            context.say(f"differs from when the run began, answers may be rounded differently: {change}")
        suspects = state.suspects
        if suspects.alone or suspects.poison:
            context.say(
                f"the process died {suspects.num_deaths} times: {counted(len(suspects.alone), 'row')} that were under "
                f"way run alone, {len(suspects.poison)} no more"
            )
        state.begin_attempt()
        config = context.config
        saver = RowSaver(state, self._plan.schema.results, config.save_interval, context.stop.committing)
        to_run = RowsToRun(state.saved, suspects.alone, suspects.poison, suspects.num_deaths)
        try:
            return run_rows(context, self._plan, engine, saver, to_run, state.run.seed)
        except StorageError:
            raise
        except (Exception, Stopped):
            # What is done is done, whatever comes next.
            saver.save()
            raise

    def _begin_run(self, fingerprint: Fingerprint) -> None:
        config = self._context.config
        self._state.begin(
            RunRecord(
                run_id=secrets.token_hex(8),
                created=now(),
                num_rows=self._plan.source.num_rows,
                seed=secrets.randbelow(2**32) if config.seed is None else config.seed,
                fingerprint=fingerprint,
                job=config.flags,
                output=_name(self._output),
            )
        )

    def _publish(self, fingerprint: Fingerprint) -> None:
        state = self._state
        assert state.run is not None
        record = OutputRecord(
            run_id=state.run.run_id,
            fingerprint=fingerprint.sha256,
            num_rows=state.run.num_rows,
            columns=output_columns(self._plan.schema),
            limit=self._context.config.limit,
            failures=state.progress.failures,
            versions=versions(),
        )
        publish(
            state,
            self._plan.source,
            self._output,
            self._plan.schema,
            record,
            check_input=self._content.check_unchanged,
            overwrite=self._context.config.overwrite,
        )

    def _give_up(self) -> RunSummary:
        self._state.note_stop("errors")
        return self._report_stop(self._context.too_many_errors(self._plan.source.num_rows, len(self._state.saved)))

    def _report_stop(self, error: CommandError) -> RunSummary:
        context = self._context
        summary = context.summary(exit_code(error))
        if context.counts.rows_done:
            with context.stop.undisturbed():
                print_report(context.console, summary, context.counts.failures.counts())
        context.say_error(error)
        return summary

    def _report(self) -> RunSummary:
        context, config = self._context, self._context.config
        failures = context.counts.failures.counts()
        summary = context.summary(output=config.output)
        print_report(context.console, summary, failures)
        if hint := retry_hint(config.output, {each.code: each.rows for each in failures}, config.state_dir):
            context.say(f"hint: {hint}")
        return summary


def _name(output: Output) -> str:
    """That of a directory ends in a slash."""
    return f"{output.path}/" if isinstance(output, OutputDirectory) else str(output.path)
