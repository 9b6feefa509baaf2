"""Children end with us, however we end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from infer.engine.child_process import run_module

PARENT = """
import sys
from pathlib import Path
from infer.cli.app import Stopped, StopRequest
from infer.engine.child_process import run_module

try:
    with StopRequest():
        run_module("waits_for_ever", sys.argv[1], temporary=Path("."))
except Stopped:
    sys.exit(75)
"""
WAITS_FOR_EVER = """
import signal, sys
# As a program that does not want to be disturbed.
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
with open(sys.argv[1], "w") as pipe:
    print("running", file=pipe, flush=True)
    signal.pause()
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder whose modules a child finds."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_module_is_run_as_python_m_would(modules):
    (modules / "shows.py").write_text(
        "import sys; print(__name__, sys.argv[1:]); print('x', file=sys.stderr); sys.exit(3)"
    )
    done = run_module("shows", "a", "-b", temporary=modules)
    assert (done.returncode, done.stdout, done.stderr) == (3, "__main__ ['a', '-b']\n", "x\n")


def test_child_has_its_temporary_files_where_it_is_told(modules):
    (modules / "shows.py").write_text("import tempfile; print(tempfile.gettempdir())")
    assert run_module("shows", temporary=modules).stdout == f"{modules}\n"


def test_child_does_not_take_modules_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "shows.py").write_text("print('taken')")
    monkeypatch.chdir(tmp_path)
    assert run_module("shows", temporary=tmp_path).returncode == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not end a child with its parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_child_outlives_us(modules, number):
    (modules / "waits_for_ever.py").write_text(WAITS_FOR_EVER)
    fifo = modules / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen([sys.executable, "-c", PARENT, fifo], cwd=modules, start_new_session=True) as parent:
        # The end of the pipe is the child's death.
        with fifo.open("rb", buffering=0) as pipe:
            assert pipe.readline() == b"running\n"
            parent.send_signal(number)
            readable, _, _ = select.select([pipe], [], [], 2.0)
            assert readable, "alive after 2 s"
            assert pipe.read() == b""
        assert parent.wait(timeout=30) == (-number if number == signal.SIGKILL else 75)
