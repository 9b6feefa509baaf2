"""Which error exits with which code, and what a person reads."""

from __future__ import annotations

import errno

import pytest
import torch

from infer.cli.errors import (
    ExitCode,
    InterruptError,
    StandardOutputError,
    StoppedEarlyError,
    UsageError,
    error_message,
    exit_code,
)
from infer.engine.errors import ConfigError, ModelError, RequestError
from infer.io.errors import (
    InputError,
    LockedError,
    OutputExistsError,
    OutputNameError,
    StorageError,
    VerificationError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("m"), 2),
        (ConfigError("m"), 2),
        (OutputNameError("m"), 2),
        (InputError("m"), 4),
        (OutputExistsError("m"), 5),
        (LockedError("m"), 6),
        (StorageError("m"), 7),
        (StandardOutputError("m"), 7),
        (ModelError("m"), 8),
        (MemoryError(), 8),
        (torch.OutOfMemoryError("m"), 8),
        (VerificationError("m"), 9),
        (StoppedEarlyError("m"), 75),
        (InterruptError("m"), 130),
        (KeyError("m"), 1),
        # A row's error that gets this far was not made a row of the output.
        (RequestError("prompt_too_long", "m"), 1),
    ],
)
def test_exit_code_follows_the_class(error, code):
    assert exit_code(error) == code


def test_message_has_the_hint_on_a_line_of_its_own():
    assert error_message(InputError("no such file: a", "did you mean 'b'?")) == (
        "error: no such file: a\nhint: did you mean 'b'?"
    )
    assert error_message(ModelError("no such model: a")) == "error: no such model: a"


def test_message_makes_control_characters_visible():
    error = InputError("no such file: a\x1b[2J\nhint: rm -rf", "did you mean '\u202e'?")
    assert error_message(error) == ("error: no such file: a\\x1b[2J\\nhint: rm -rf\nhint: did you mean '\\u202e'?")


@pytest.mark.parametrize("error_class", [InterruptError, StoppedEarlyError])
def test_stop_that_was_asked_for_is_not_called_an_error(error_class):
    assert error_message(error_class("stopped", "run again")) == "stopped\nhint: run again"


def test_no_code_is_the_one_that_a_scheduler_takes_for_skipped():
    assert 99 not in list(ExitCode)


def test_settings_of_the_engine_are_called_by_their_flags():
    assert error_message(ConfigError("memory_utilization must be above 0 and at most 1: 2.0")) == (
        "error: --gpu-memory-utilization must be above 0 and at most 1: 2.0"
    )
    assert error_message(ConfigError("stop must be texts, none of them empty: ('',)")) == (
        "error: --stop must be texts, none of them empty: ('',)"
    )
    assert error_message(ConfigError("min_tokens must be at most max_tokens, 3: 4")) == (
        "error: --min-tokens must be at most --max-tokens, 3: 4"
    )
    # A word of the message that is a setting, too.
    assert error_message(ConfigError("no such device, the model and its seed: x")) == (
        "error: no such device, the model and its seed: x"
    )


def test_lack_of_memory_says_what_to_lower():
    assert error_message(torch.OutOfMemoryError("tried to allocate 2 GiB")) == (
        "error: out of memory: tried to allocate 2 GiB\n"
        "hint: lower --max-num-seqs, --max-num-batched-tokens or --gpu-memory-utilization"
    )


def bug() -> str:
    try:
        try:
            int("a secret\x1b[2J\n    of the row")
        except ValueError as error:
            raise OSError(errno.EBADF, f"found in {error}") from error
    except OSError as error:
        return error_message(error)


def test_bug_shows_where_it_happened_and_how_to_report_it(monkeypatch):
    monkeypatch.delenv("INFER_LOG_LEVEL", raising=False)
    lines = bug().split("\n")
    places = [line for line in lines if not line.startswith("  ")]
    assert places == [
        *("Traceback (most recent call last):", "ValueError", "Traceback (most recent call last):", "OSError"),
        "error: this is a bug in infer: OSError",
        "hint: please report it with the lines above, the command and the output of `infer version`; "
        "INFER_LOG_LEVEL=debug shows the message too, which may quote a row",
    ]
    assert '    raise OSError(errno.EBADF, f"found in {error}") from error' in lines
    assert not any("invalid literal" in line or "[Errno" in line for line in lines)


def test_bug_tells_its_message_where_that_is_asked_for(monkeypatch):
    monkeypatch.setenv("INFER_LOG_LEVEL", "debug")
    assert "OSError: [Errno 9] found in invalid literal for int() with base 10: 'a secret\\x1b[2J" in bug()
    assert "\x1b" not in bug()
