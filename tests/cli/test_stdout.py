"""Standard output may be closed, or its disk full, whatever is printed there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INFER = Path(sys.executable).with_name("infer")
SUMMARY = """
import sys
from infer.cli import app
from infer.cli.stdout import print_summary

app.app.command("summary")(lambda: print_summary("{}"))
sys.exit(app.main(["summary"]))
"""
FULL = "error: standard output cannot be written: No space left on device\n"
PRINTING = [
    "--help",
    "--version",
    "version",
    "version --json",
    "run --help",
    "models list",
    "models list --json",
    "models",
]


def run(command, **variables):
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        check=False,
        env=variables or None,
    )


@pytest.mark.parametrize("arguments", PRINTING)
def test_full_disk_is_an_error_for_every_command_that_prints(arguments):
    done = run(f"exec {INFER} {arguments} >/dev/full")
    # The help page of a group without a command goes to standard error.
    assert (done.returncode, done.stderr) == (7, FULL) or (arguments == "models" and done.returncode == 2)


@pytest.mark.parametrize("arguments", PRINTING[:-1])
def test_reader_that_has_gone_is_no_error(arguments):
    done = run(f"(exec {INFER} {arguments}) | true")
    assert (done.returncode, done.stderr) == (0, "")


def test_other_encodings_are_guarded_too():
    done = run(f"exec {INFER} version >/dev/full", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (7, FULL)


def test_full_disk_under_a_summary_says_where_the_rows_are():
    done = run(f"exec {sys.executable} -c '{SUMMARY}' >/dev/full")
    assert (done.returncode, done.stderr) == (7, FULL + "hint: the rows are in the output file\n")


def test_closed_standard_output_is_silence():
    done = run(f"exec {INFER} version >&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_full_disk_under_standard_error_does_not_change_the_code():
    assert run(f"exec {INFER} run nothing.jsonl 2>/dev/full").returncode == 4
