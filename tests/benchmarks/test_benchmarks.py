"""That no script of `benchmarks/` rots."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in BENCHMARKS.rglob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_script_can_be_asked_for_help(path):
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {path.name} ")


def test_readme_names_every_script():
    readme = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in SCRIPTS if path.name not in readme] == []
