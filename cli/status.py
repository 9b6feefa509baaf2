"""`infer status`: how far a run is, while it goes on or afterwards."""

from __future__ import annotations

import json as json_format
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infer.cli.find_state import OutputArgument, StateDirOption, find_state, is_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infer.io.status import RunStatus

_MAX_ROWS_SHOWN = 8
_REASONS = {"errors": "more rows failed than may", "error": "an error that was no row's fault"}


def status_command(
    output: OutputArgument,
    state_dir: StateDirOption = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show how far a run is, from what it has saved; it may be running.

    Takes no lock and changes nothing.
    """
    # Here, because the help page must not wait for what a look needs.
    from infer.cli.terminal import safe
    from infer.io.status import read_status

    directory = find_state(output, state_dir)
    status = read_status(directory)
    if json:
        typer.echo(json_format.dumps(_to_json(status, directory, output)))
        return
    for name, text in _lines(status, directory, output, state_dir):
        typer.echo(safe(f"{name:12}{text}"))


def _lines(status: RunStatus, directory: Path, output: str, state_dir: str | None) -> Iterator[tuple[str, str]]:
    from infer.cli.figures import count, counted, percent
    from infer.cli.retry_rows import retry_hint
    from infer.io.status import RunPhase

    run, progress, phase = status.run, status.progress, status.phase
    yield "state", _state(status)
    if run is not None:
        share = percent(progress.num_rows, run.num_rows)
        yield "rows", f"{count(progress.num_rows)} of {count(run.num_rows)} saved, {share}"
    if progress.failures:
        codes = sorted(progress.failures.items(), key=lambda each: -each[1])
        listed = ", ".join(f"{count(number)} {code}" for code, number in codes)
        yield "failed", f"{count(sum(progress.failures.values()))}: {listed}"
    if status.last_saved is not None:
        yield "last saved", _last_saved(status)
    if status.num_attempts:
        yield "attempts", f"{count(status.num_attempts)}, {count(status.num_deaths)} died"
    suspects = status.suspects
    if suspects.alone:
        yield "suspects", f"{counted(len(suspects.alone), 'row')}, to be run alone: {_some(suspects.alone)}"
    if suspects.poison:
        yield "poison", f"{counted(len(suspects.poison), 'row')}, not to be run: {_some(suspects.poison)}"
    if run is not None:
        yield "run", f"{run.run_id}, begun {run.created}, seed {run.seed}"
        yield "model", str(run.job.get("model", "unknown"))
        for name in run.job.get("inputs", []):
            yield "input", str(name)
        gone = "" if phase is not RunPhase.DONE or _output_path(run.output, output).exists() else ", which is gone"
        yield "output", f"{run.output}{gone}"
    yield "saved in", str(directory)
    if phase is RunPhase.DONE:
        hint = retry_hint(output, progress.failures, state_dir)
        if hint:
            yield "hint:", hint
    elif phase not in (RunPhase.RUNNING, RunPhase.UNKNOWN) and run is not None:
        # A retry that was begun is continued by both.
        way = f"infer retry {shlex.quote(output)}" if progress.replaced is not None else "run the same command again"
        # It would give up at once.
        limit = ", without --max-errors or --on-error fail," if status.stop_reason == "errors" else ""
        yield "hint:", f"{way}{limit} to continue"


def _output_path(recorded: str, named: str) -> Path:
    """The output where it was named: it may have been moved, with its state."""
    return Path(recorded if is_state(Path(named)) else named)


def _state(status: RunStatus) -> str:
    from infer.io.status import RunPhase

    run, holder = status.run, status.holder
    match status.phase:
        case RunPhase.EMPTY:
            return "nothing saved"
        case RunPhase.RUNNING:
            assert holder is not None
            step = ""
            if run is None:
                step = ", nothing saved yet"
            elif status.progress.num_rows == run.num_rows and status.progress.final is None:
                step = ", writing the output"
            return f"running: {holder.describe()}{step}"
        case RunPhase.UNKNOWN:
            assert holder is not None
            return f"unknown from here: {holder.describe()}"
        case RunPhase.STOPPED:
            reason = status.stop_reason or ""
            return f"stopped: {_REASONS.get(reason, reason)}"
        case RunPhase.DIED:
            return "died" if holder is None else f"died: {holder.describe()}"
        case RunPhase.DONE:
            return "done"


def _last_saved(status: RunStatus) -> str:
    from tqdm import tqdm

    from infer.cli.figures import count

    assert status.last_saved is not None
    age = max(0.0, (datetime.now(UTC) - status.last_saved).total_seconds())
    parts = [f"{status.last_saved.isoformat(sep=' ')}, {_ago(age)}"]
    if status.rows_per_second is not None:
        rate = status.rows_per_second
        parts.append(f"{count(rate) if rate >= 10 else f'{rate:.2g}'} rows/s")
    if status.seconds_left is not None:
        parts.append(f"{tqdm.format_interval(status.seconds_left)} left")
    return ", ".join(parts)


def _some(rows: frozenset[int]) -> str:
    shown = sorted(rows)[:_MAX_ROWS_SHOWN]
    return ", ".join(map(str, shown)) + (", ..." if len(rows) > len(shown) else "")


def _to_json(status: RunStatus, directory: Path, output: str) -> dict[str, object]:
    run, holder, rate = status.run, status.holder, status.rows_per_second
    left = status.seconds_left
    return {
        "state": str(status.phase),
        "stop_reason": status.stop_reason,
        "process": None if holder is None else {"pid": holder.pid, "host": holder.host, "start": holder.start},
        "rows": status.num_rows,
        "rows_saved": status.progress.num_rows,
        "rows_failed": sum(status.progress.failures.values()),
        "failures": status.progress.failures,
        "last_saved": None if status.last_saved is None else status.last_saved.isoformat(),
        "rows_per_second": None if rate is None else round(rate, 3),
        "seconds_left": None if left is None else round(left, 1),
        "attempts": status.num_attempts,
        "deaths": status.num_deaths,
        "suspects": sorted(status.suspects.alone),
        "poison": sorted(status.suspects.poison),
        "run_id": None if run is None else run.run_id,
        "created": None if run is None else run.created,
        "seed": None if run is None else run.seed,
        "model": None if run is None else run.job.get("model"),
        "inputs": None if run is None else run.job.get("inputs"),
        "output": None if run is None else run.output,
        "output_exists": run is not None and _output_path(run.output, output).exists(),
        "state_dir": str(directory),
    }


def _ago(seconds: float) -> str:
    from tqdm import tqdm

    return f"{seconds:.0f} s ago" if seconds < 100 else f"{tqdm.format_interval(seconds)} ago"
