"""Standard output may be closed, or its disk full: the run is done all the same."""

from __future__ import annotations

import subprocess
import sys

PRINT = "import sys; from infer.cli.stdout import print_summary; print_summary('{}'); sys.exit(3)"


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


def test_closed_pipe_changes_nothing():
    done = run(f'set -o pipefail; (exec {sys.executable} -c "{PRINT}") | true')
    assert (done.returncode, done.stderr) == (3, "")


def test_full_disk_is_an_error_that_says_where_the_rows_are():
    done = run(f'exec {sys.executable} -c "{PRINT}" >/dev/full')
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "StandardOutputError: the summary cannot be written to standard output: No space left on device"
    )
