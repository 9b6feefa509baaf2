"""Standard output: where data goes. Its disk may be full, and nobody may be reading any more.

A reader that has gone is met with silence: `infer models list | head -1` is no mistake. Everything else is an error,
whatever is printed: a summary, a list, a help page.
"""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from infer.cli.errors import StandardOutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer


class _StandardOutput(io.FileIO):
    """The descriptor under all of Python's streams over it. After a failure it swallows the rest: what is left in their
    buffers would fail again when they are closed."""

    has_failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self.has_failed:
            try:
                return super().write(data)
            except BrokenPipeError:
                self.has_failed = True
            except OSError as error:
                self.has_failed = True
                raise StandardOutputError(f"standard output cannot be written: {error.strerror}") from error
        return memoryview(data).nbytes


@contextmanager
def checked_stdout() -> Iterator[None]:
    """While the block runs, what is printed to the process's standard output raises `StandardOutputError` where it
    cannot be written, at the latest at the end of the block. A stream that somebody else put there is left alone."""
    original = sys.stdout
    if original is None or original is not sys.__stdout__ or not isinstance(original, io.TextIOWrapper):
        yield
        return
    original.flush()
    stream = io.TextIOWrapper(
        io.BufferedWriter(_StandardOutput(original.fileno(), "wb", closefd=False)),
        encoding=original.encoding,
        errors=original.errors,
        line_buffering=original.line_buffering,
    )
    sys.stdout = stream
    try:
        yield
        stream.flush()
    finally:
        sys.stdout = original
        # What the block failed with is the error to tell.
        with suppress(StandardOutputError):
            stream.detach()


def print_summary(line: str) -> None:
    """Print one line about a run whose output is published.

    Raises:
        StandardOutputError: it cannot be written.
    """
    try:
        print(line, flush=True)
    except StandardOutputError as error:
        raise StandardOutputError(str(error), "the rows are in the output file") from error


def reader_has_gone() -> bool:
    """Whether what is printed reaches nobody any more."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _StandardOutput) and raw.has_failed
