"""The terminal on standard error: what it can show, and text that is safe to put on it."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console

from infer.cli.redact import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 with ESC, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates that reorder a line
    "\u2028\u2029"  # line ends to some terminals and log readers
    "\ud800-\udfff"  # lone surrogates: undecodable bytes of a file name, half a pair in JSON
    "]"
)


def safe(text: str) -> str:
    """Make what could steer a terminal visible, `ESC` as `\\x1b`, a line feed as `\\n`, and hide tokens and keys.

    Everything that comes from data passes through here before it is shown. The result is one line and is shown as it
    is: the console below reads no markup in it.
    """
    return _UNSAFE.sub(_escape, redact(text))


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


class SafeStream:
    """A stream that shows what libraries write to it by `safe`, line by line: their warnings quote files and names."""

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)

    def write(self, text: str) -> int:
        self.unfiltered.write("\n".join(map(safe, text.split("\n"))))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)


@contextmanager
def safe_standard_error() -> Iterator[None]:
    """Put a SafeStream in standard error's place. Consoles of ours escape for themselves, and see through it."""
    before = sys.stderr
    if before is not None:
        sys.stderr = cast("TextIO", SafeStream(before))
    try:
        yield
    finally:
        sys.stderr = before


class _PatientStream:
    """A stream that falls silent where it cannot be written to: nobody reads any more, or the disk of a log is full.
    That is not worth a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._fall_silent()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._fall_silent()

    def _fall_silent(self) -> None:
        # What is left in its buffer would fail again when the interpreter closes the stream.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        self._stream = io.StringIO()


def open_console(stream: TextIO | None) -> Console:
    """A console that takes text literally; a silent one where the process was started without the stream.

    Only the stream says whether it is a terminal, so `FORCE_COLOR` in a CI job gives coloured lines and not cursor
    movements in the log. `NO_COLOR` wins over it, `TERM=dumb` over both.
    """
    stream = getattr(stream, "unfiltered", stream)
    if stream is None:
        return Console(file=io.StringIO(), quiet=True)
    is_terminal = stream.isatty()
    is_forced = os.environ.get("FORCE_COLOR", "0") not in ("", "0")
    return Console(
        file=cast("TextIO", _PatientStream(stream)),
        force_terminal=is_terminal,
        # Of a pipe nobody can say what reads it: only the sixteen colours that everything knows.
        color_system="auto" if is_terminal else "standard" if is_forced else None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def can_redraw(console: Console) -> bool:
    """Whether lines already printed can be replaced: a terminal that is not dumb."""
    return console.is_terminal and console.is_interactive
