"""The `infer` command: its sub-commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from infer.cli.bench import bench_command
from infer.cli.doctor import doctor_command
from infer.cli.errors import ExitCode, UsageError, error_message, exit_code, usage_message
from infer.cli.help import SectionedCommand
from infer.cli.models import models_app
from infer.cli.retry import retry_command
from infer.cli.run import EPILOG, run_command
from infer.cli.status import status_command
from infer.cli.stdout import checked_stdout
from infer.cli.stop_request import Stopped, StopRequest, stop_error
from infer.cli.verify import verify_command
from infer.cli.version import infer_version, version_command
from infer.engine.cache_dir import compiled_dir
from infer.engine.errors import ConfigError
from infer.engine.panics import is_panic

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("run", cls=SectionedCommand, epilog=EPILOG, context_settings={"auto_envvar_prefix": "INFER"})(run_command)
app.add_typer(models_app, name="models")
app.command("status")(status_command)
app.command("retry")(retry_command)
app.command("verify")(verify_command)
app.command("bench", cls=SectionedCommand, context_settings={"auto_envvar_prefix": "INFER"})(bench_command)
app.command("doctor")(doctor_command)
app.command("version")(version_command)


@app.callback(invoke_without_command=True, add_help_option=False)
def infer(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    # Ours, because typer's imports pydantic to find out that it was not given: half the time of `infer run --help`.
    show_help: Annotated[bool, typer.Option("--help", help="Show this message and exit.")] = False,
) -> None:
    """Run a language model over every row of a data set."""
    if show_version:
        typer.echo(f"infer {infer_version()}")
        raise typer.Exit
    if show_help or context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, the process's own by default. What goes wrong is said on standard error.

    A signal stops it wherever it is; a run that is worth more listens itself meanwhile.

    Returns:
        The exit code.
    """
    # Imported here: rich behind it would be felt in `infer --help`.
    from infer.cli.terminal import safe_standard_error

    with safe_standard_error():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    set_process_defaults()
    try:
        with StopRequest(), checked_stdout():
            set_up_logging()
            code = _call(arguments)
    except typer.TyperException as error:
        _complain(usage_message(error))
        return ExitCode.USAGE
    except Stopped as stopped:
        stop = stop_error(stopped.cause)
        _complain(error_message(stop))
        return exit_code(stop)
    except Exception as error:
        _complain(error_message(error))
        return exit_code(error)
    return ExitCode.DONE if code is None else code


def _call(arguments: Sequence[str] | None) -> int | None:
    try:
        code: int | None = app(args=arguments, prog_name="infer", standalone_mode=False)
    except BaseException as error:
        if is_panic(error):
            raise RuntimeError("a library has panicked") from error
        raise
    return code


def _complain(text: str) -> None:
    # Without a standard error, print would take standard output, which is for data.
    if sys.stderr is not None:
        # Where it cannot be written either, the exit code alone has to tell.
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def set_up_logging() -> None:
    """`INFER_LOG_LEVEL=debug` tells each decision of the scheduler in a line a step.

    Raises:
        UsageError: no such level.
    """
    name = os.environ.get("INFER_LOG_LEVEL")
    if not name:
        return
    # Imported here: the help page needs none of it.
    import logging

    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        raise UsageError(f"INFER_LOG_LEVEL must be debug, info, warning or error: {name}")
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s  %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    logging.getLogger("infer").setLevel(level)


def set_process_defaults() -> None:
    """Choose what libraries read from the environment on import. What the user has set stays."""
    defaults = {
        # A step is many short parallel loops. Threads that sleep in between double its time; threads that spin for long
        # stop it altogether where another process wants the core. So: spin about as long as such a gap is.
        "GOMP_SPINCOUNT": "20000",
        # Prompts are tokenised between steps, when no other thread is at work.
        "TOKENIZERS_PARALLELISM": "true",
        # Other people's bars and remarks would be drawn over the run's own view.
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    # Without a place for it, each process compiles for itself.
    with suppress(ConfigError):
        if "NUMBA_CACHE_DIR" not in os.environ and (directory := compiled_dir()) is not None:
            defaults["NUMBA_CACHE_DIR"] = str(directory)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
