"""Python programs run as children that end with us, however we end."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BOOTSTRAP = """
import ctypes, os, runpy, signal, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
# It may have died before it was listened to.
if os.getppid() != parent:
    sys.exit(1)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""The child asks for it itself: code of ours between fork and exec could deadlock, as this process has threads."""


def run_module(module: str, *arguments: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    """`python -m module arguments` without standard input, its output captured.

    What a killed child leaves of its temporary files is in the directory `temporary`.
    Call it from a thread that lives as long as it takes: on Linux the child ends with the thread that started it, also
    where the process is killed. Where an exception passes through, the child is killed too.
    """
    env = os.environ | {"TMPDIR": str(temporary)}
    command = (sys.executable, "-P", "-c", _BOOTSTRAP, str(os.getpid()), module, *arguments)
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=env)
