"""The process environment of the tests, set before torch, numba or Triton is imported."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

# A job that a shell runs in the background ignores Ctrl-C, and so would the runs that are interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread: tiny models gain nothing from more, and threads that wait for each other slow every test process down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

# Without a GPU, Triton's kernels are interpreted.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`figure("kill -9", "200 runs, 0 lost")` is printed when all tests are through, and now."""

    def note(name: str, text: str) -> None:
        request.node.user_properties.append(("figure", f"{name}: {text}"))
        print(f"{name}: {text}")

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests of the guarantees have counted."""
    reports = [report for kind in ("passed", "failed", "xfailed") for report in terminalreporter.stats.get(kind, ())]
    lines = [
        text
        for report in reports
        if "reliability" in report.keywords
        for name, text in report.user_properties
        if name == "figure"
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.line(line)
