"""The first thing that runs in the process: from here on a signal ends it with a word instead of a traceback.

It imports next to nothing; the command line behind it takes a fifth of a second. The default actions of signals do not
hold for the first process of a container: until there are handlers, it cannot be stopped.
"""

from __future__ import annotations

import os
import signal
import sys

# As typing's, whose import would take longer than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

# By number, as in `ExitCode`: importing that is part of what is guarded.
_STOPPED = 75
_INTERRUPTED = 130


def main() -> int:
    """Run the command line of this process. Returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        # What the process was started to ignore stays ignored: SIGHUP under nohup, SIGINT behind a shell's `&`.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    _open_standard_streams()
    from infer.cli.app import main as run_command_line

    code = run_command_line()
    if code in (_STOPPED, _INTERRUPTED):
        _leave(code)
    return code


def _open_standard_streams() -> None:
    """Where the process was started without one of its three streams, the next file it opens would take its number, and
    what a library writes to standard error would land in that file."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _end(number: int, _: FrameType | None) -> NoReturn:
    # At once: an exception would pass through half-done imports, some of which catch everything.
    is_interrupt = number == signal.SIGINT
    message = "interrupted" if is_interrupt else f"stopped by {signal.Signals(number).name}"
    try:
        os.write(2, f"{message}\nhint: run the same command again to continue\n".encode())
    finally:
        # Also where nobody can read it.
        os._exit(_INTERRUPTED if is_interrupt else _STOPPED)


def _leave(code: int) -> NoReturn:
    """After a stop nobody waits for the threads of libraries, which may be in the middle of a download."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        os._exit(code)
