"""What can go wrong in the engine.

EngineError
|- ConfigError (ValueError)      a setting that cannot work; the job stops before its first row
|- ModelError (RuntimeError)     a model that cannot be found, read or run exactly
`- RequestError (ValueError)     one request is refused; carries the row's error code, the others go on
   `- PromptError               one prompt cannot be rendered; likewise
"""

from __future__ import annotations

_MOST_CHARS = 300
"""Of a line about an exception that nobody foresaw."""


class EngineError(Exception):
    """Base of this room. `hint` says what to do, or is empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(EngineError, ValueError):
    """A setting that cannot work."""


class ModelError(EngineError, RuntimeError):
    """A model that cannot be found, read or run exactly."""


class RequestError(EngineError, ValueError):
    """A request the engine refuses. `code` is the row's `error_code`, e.g. `prompt_too_long`.

    The message stands beside the row in the output and may quote it. `public` is what is said of it elsewhere, on the
    terminal and in logs: no text of a row's.
    """

    def __init__(self, code: str, message: str, hint: str = "", *, public: str | None = None) -> None:
        super().__init__(message, hint)
        self.code = code
        self.public = message if public is None else public


class PromptError(RequestError):
    """A prompt that cannot be rendered: code `template_error`, `invalid_input`, `invalid_unicode` or `empty_prompt`."""


def describe(error: BaseException) -> str:
    """Class and text of any exception in one line, shortened."""
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}".removesuffix(": ")
    return line if len(line) <= _MOST_CHARS else f"{line[: _MOST_CHARS - 3]}..."
