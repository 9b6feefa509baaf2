"""The process from its first line on: signals before there is a command line, closed streams, PID 1, cron."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import catches, wait_until

INFER = Path(sys.executable).with_name("infer")
SIGNALLED_DURING_IMPORT = """
import os, signal, sys

class Importing:
    def find_spec(self, name, path=None, target=None):
        if name == "infer.cli.app":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Importing())
from infer.cli.start import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 75, "stopped by SIGTERM"),
        (signal.SIGHUP, 75, "stopped by SIGHUP"),
        (signal.SIGUSR1, 75, "stopped by SIGUSR1"),
    ],
)
def test_signal_before_the_command_line_is_there_ends_the_process_with_a_word(number, code, message):
    program = SIGNALLED_DURING_IMPORT.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"{message}\nhint: run the same command again to continue\n"


def test_ignored_signal_stays_ignored_during_the_import():
    program = SIGNALLED_DURING_IMPORT.format(number=int(signal.SIGHUP))
    command = ["nohup", sys.executable, "-c", program, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("infer ")


def test_closed_streams_are_not_taken_by_the_next_files(tmp_path):
    program = f"""
import os, sys
from infer.cli.start import main
sys.argv = ["infer", "--version"]
code = main()
names = [os.readlink(f"/proc/self/fd/{{number}}") for number in range(3)]
open({str(tmp_path / "names")!r}, "w").write(f"{{code}} {{names}}")
"""
    subprocess.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-c", program], check=True)
    assert (tmp_path / "names").read_text() == "0 ['/dev/null', '/dev/null', '/dev/null']"


def test_command_works_as_cron_starts_it():
    """No variables, no terminal, no standard input, another directory."""
    done = subprocess.run(
        [INFER, "version"],
        env={},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("infer ")


def reads_for_ever(tmp_path, *prefix):
    """A run whose input does not come."""
    command = [*prefix, INFER, "run", "-", "-o", tmp_path / "out.jsonl"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_that_waits_for_its_input_is_stopped(tmp_path, number):
    with reads_for_ever(tmp_path) as process:
        wait_until(lambda: catches(process.pid, signal.SIGTERM))
        process.send_signal(number)
        assert process.wait(timeout=30) == (130 if number == signal.SIGINT else 75)
        assert "Traceback" not in process.stderr.read()


def first_child(pid):
    return next(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()), None)


def has_handler(pid):
    child = first_child(pid)
    return child is not None and catches(child, signal.SIGTERM)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130), (signal.SIGHUP, 75), (signal.SIGUSR1, 75)]
)
def test_first_process_of_a_container_is_stopped(tmp_path, number, code):
    """The system ignores for it every signal that it does not handle itself."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a process namespace")
    with reads_for_ever(tmp_path, *unshare) as process:
        try:
            wait_until(lambda: has_handler(process.pid))
            os.kill(first_child(process.pid), number)
            assert process.wait(timeout=30) == code
        finally:
            process.kill()
