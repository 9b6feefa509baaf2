"""Child processes that are signalled, and a terminal for them."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path

STOPPING_RUN = Path(__file__).with_name("stopping_run.py")
ENVIRONMENT = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "PYTHONUTF8": "1"}


@contextmanager
def stopping_run(what, *arguments, ignored=(), **streams):
    """The stand-in, killed at the end of the block if it still lives."""

    def ignore():
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    command = [sys.executable, STOPPING_RUN, what, *map(str, arguments)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, preexec_fn=ignore if ignored else None, start_new_session=True, **streams
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process, line):
    """Read its standard output up to this line."""
    for found in process.stdout:
        if found.decode().rstrip("\n") == line:
            return
    raise AssertionError(f"ended without saying {line!r}: {process.stderr and process.stderr.read()}")


def catches(pid, number):
    """Whether the process has a handler of its own for a signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    raise AssertionError("no such line in its status")


def wait_until(condition, seconds=30.0):
    """Poll what cannot be waited for otherwise."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@contextmanager
def terminal():
    """An 80x24 terminal: the descriptors of who sits at it, and of the process behind it."""
    controller, process_side = pty.openpty()
    fcntl.ioctl(process_side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        yield controller, process_side
    finally:
        os.close(controller)
        os.close(process_side)


def read_all(controller):
    """What has arrived on the terminal, without waiting for more."""
    os.set_blocking(controller, False)
    output = b""
    try:
        while chunk := os.read(controller, 65_536):
            output += chunk
    except OSError:  # Nothing more now, or nobody holds the other side.
        pass
    return output.decode()
