"""A job from the flags that a user would give, with an engine that needs no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from echo_engine import EchoEngine

from infer.cli.app import app
from infer.cli.config import job_config
from infer.cli.job import run_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.cli.config import JobConfig
    from infer.cli.report import RunSummary


def config_of(*arguments: str) -> JobConfig:
    """What `infer run` makes of its arguments."""
    command = typer.main.get_command(app)
    run: Any = command.commands["run"]  # type: ignore[attr-defined]
    with run.make_context("run", list(arguments)) as context:
        return job_config(context.params)


def run_flags(
    *arguments: str,
    engine: Callable[[], EchoEngine] = EchoEngine,
    model: dict[str, object] | None = None,
) -> RunSummary:
    """Run it. `model` is what its model is told to be before it is loaded."""
    return run_job(config_of(*arguments), lambda *_: engine(), lambda *_: model or {"model weights": "echo"})
