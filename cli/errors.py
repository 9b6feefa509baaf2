"""From an error to what the process says and the code it exits with.

    CommandError
    |- UsageError (ValueError)   flags that cannot be meant; exit 2
    |- StandardOutputError       what was asked for cannot be printed; exit 7
    |- TooManyErrorsError        more rows have failed than may; exit 3
    |- StoppedEarlyError         a signal or the time that is up; exit 75
    `- InterruptError            the user pressed Ctrl-C; exit 130

The other rooms raise their own classes (`infer.io.errors`, `infer.engine.errors`); what has no line in `_EXIT_CODES` is
a bug of ours.
"""

from __future__ import annotations

import os
import sys
import traceback
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from infer.engine.errors import ConfigError, ModelError
from infer.io.errors import (
    FingerprintError,
    InputError,
    LockedError,
    OutputExistsError,
    OutputNameError,
    StateError,
    StorageError,
    VerificationError,
)

if TYPE_CHECKING:
    from typer import TyperException


_NUM_FRAMES = -6
_MOST_CAUSES = 5


class ExitCode(IntEnum):
    """What a caller can tell from the exit status alone."""

    DONE = 0
    BUG = 1
    USAGE = 2
    ROW_ERRORS = 3
    INPUT = 4
    REFUSED = 5
    LOCKED = 6
    STORAGE = 7
    MODEL = 8
    VERIFICATION = 9
    STOPPED = 75
    INTERRUPTED = 130


class CommandError(Exception):
    """Base of this room. `hint` says what to do, or is empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(CommandError, ValueError):
    """Flags that cannot be meant."""


class StoppedEarlyError(CommandError):
    """Somebody else than the user at the terminal asked to stop, or the time was up."""


class TooManyErrorsError(CommandError):
    """More rows have failed than may."""


class InterruptError(CommandError):
    """The user asked to stop."""


class StandardOutputError(CommandError):
    """Standard output cannot be written to."""


_EXIT_CODES: tuple[tuple[type[Exception], ExitCode], ...] = (
    (UsageError, ExitCode.USAGE),
    (ConfigError, ExitCode.USAGE),
    (OutputNameError, ExitCode.USAGE),
    (InputError, ExitCode.INPUT),
    (OutputExistsError, ExitCode.REFUSED),
    (FingerprintError, ExitCode.REFUSED),
    (LockedError, ExitCode.LOCKED),
    (StorageError, ExitCode.STORAGE),
    (StateError, ExitCode.STORAGE),
    (StandardOutputError, ExitCode.STORAGE),
    (ModelError, ExitCode.MODEL),
    (VerificationError, ExitCode.VERIFICATION),
    (TooManyErrorsError, ExitCode.ROW_ERRORS),
    (StoppedEarlyError, ExitCode.STOPPED),
    (InterruptError, ExitCode.INTERRUPTED),
)


def exit_code(error: Exception) -> ExitCode:
    """The code of the class of `error`; `BUG` for one that nobody foresaw."""
    for error_class, code in _EXIT_CODES:
        if isinstance(error, error_class):
            return code
    return ExitCode.MODEL if _is_out_of_memory(error) else ExitCode.BUG


def error_message(error: Exception) -> str:
    """The lines for a person: what was found, then `hint:`; for a bug where it happened and how to report it."""
    if isinstance(error, InterruptError | StoppedEarlyError | TooManyErrorsError):
        return _lines(str(error), hint=error.hint)
    if _is_out_of_memory(error):
        hint = "lower --max-num-seqs, --max-num-batched-tokens or --gpu-memory-utilization"
        return _lines(f"error: out of memory: {error}".removesuffix(": "), hint=hint)
    if exit_code(error) is ExitCode.BUG:
        return _bug_message(error)
    return _lines(f"error: {_message(error)}", hint=getattr(error, "hint", ""))


def usage_message(error: TyperException) -> str:
    """The same for what typer found wrong with a command line."""
    message = error.format_message()
    if message.startswith("Usage: "):
        # A group of commands without a command: the message is its help page.
        return message
    message = message.removesuffix(".").replace("Value error, ", "").replace(". Did you", "; did you")
    # typer has no public class for errors that know where on the command line they were found.
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f"{context.command_path} --help"
    return _lines(f"error: {message[:1].lower()}{message[1:]}{_variable(error, context)}", hint=hint)


def _variable(error: TyperException, context: Any) -> str:
    """The environment variable that the wrong value came from: it is not on the command line to be seen."""
    name = getattr(getattr(error, "param", None), "name", None)
    if context is None or name is None or not context.auto_envvar_prefix:
        return ""
    variable = f"{context.auto_envvar_prefix}_{name.upper()}"
    source = context.get_parameter_source(name)
    is_from_it = source is not None and source.name == "ENVIRONMENT" and variable in os.environ
    return f", {variable} is {os.environ[variable]!r:.80}" if is_from_it else ""


def _message(error: Exception) -> str:
    if not isinstance(error, ConfigError):
        return str(error)
    # Imported here: it knows all settings, and the help page needs none.
    from infer.cli.flags import with_flags

    return with_flags(str(error))


def _lines(*lines: str, hint: str) -> str:
    # Imported here: rich behind it would be felt in `infer --help`.
    from infer.cli.terminal import safe

    # Names of files and columns, and values, come from data: none of it may steer the terminal or start a line.
    return "\n".join(safe(line) for line in ([*lines, f"hint: {hint}"] if hint else lines))


def _bug_message(error: Exception) -> str:
    is_asked = os.environ.get("INFER_LOG_LEVEL", "").lower() == "debug"
    message = f"error: this is a bug in infer: {type(error).__name__}"
    hint = "please report it with the lines above, the command and the output of `infer version`"
    if not is_asked:
        hint += "; INFER_LOG_LEVEL=debug shows the message too, which may quote a row"
    return _lines(*_traceback(error, with_messages=is_asked), message, hint=hint)


def _traceback(error: BaseException | None, *, with_messages: bool, depth: int = 0) -> list[str]:
    """As Python's own, each exception's message in one line, or left out."""
    if error is None or depth == _MOST_CAUSES:
        return []
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    # The innermost frames say where it broke; the outer ones are this command line in every report.
    frames = "".join(traceback.format_tb(error.__traceback__, limit=_NUM_FRAMES)).splitlines()
    name = type(error).__name__
    return [
        *_traceback(cause, with_messages=with_messages, depth=depth + 1),
        *("Traceback (most recent call last):", *frames, f"{name}: {error}" if with_messages else name),
    ]


def _is_out_of_memory(error: Exception) -> bool:
    # torch is looked up, not imported: an error before the model is loaded must not wait for it.
    torch = sys.modules.get("torch")
    return isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError))
