"""Standard output: where data goes. The output file is already published when something is written here."""

from __future__ import annotations

import os
import sys

from infer.cli.errors import StandardOutputError


def print_summary(line: str) -> None:
    """Print one line. Nobody may be reading any more: that changes nothing about the run.

    Raises:
        StandardOutputError: it cannot be written, a full disk say.
    """
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # What is left in the buffer would fail again when the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StandardOutputError(
            f"the summary cannot be written to standard output: {error.strerror}", "the rows are in the output file"
        ) from error
