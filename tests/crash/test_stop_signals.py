"""Signals at random instants to the whole command: it ends in time with its code, and can be taken up."""

from __future__ import annotations

import random
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest
from forked_runs import RunSpec
from small_jobs import OUTPUTS, SmallJob, saved_rows
from stand_in_cli import StandIn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forked_runs import ForkedRuns

pytestmark = pytest.mark.reliability

CODES = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGHUP: 75, signal.SIGUSR1: 75}
MOST_SECONDS = 5.0


def stop_one(
    runs: ForkedRuns, job: SmallJob, where: Path, number: signal.Signals, seconds: float
) -> tuple[str, float, bool]:
    """What is wrong, how long it took to end, and whether it was stopped before its end."""
    job.make(where)
    run = runs.start(RunSpec(job.argv, where, StandIn(step_seconds=0.002)))
    time.sleep(seconds)
    begin = time.monotonic()
    run.kill(number)
    result = run.wait()
    took = time.monotonic() - begin
    # A signal that comes before the command listens, as it may to a forked child, ends it by itself.
    codes = {0, CODES[number], -number}
    saved = saved_rows(where)
    wrong = ""
    if result.code not in codes or "Traceback" in result.err:
        wrong = f"exit {result.code}: {result.err}"
    elif job.holds(where) not in job.may_hold():
        wrong = f"the output holds {job.holds(where)}"
    else:
        again = runs.run(RunSpec(job.argv, where))
        if again.code != 0 or job.holds(where) != "new":
            wrong = f"then exit {again.code}, the output holds {job.holds(where)}: {again.err}"
        elif saved.intersection(again.requests):
            wrong = f"saved rows run again: {saved.intersection(again.requests)}"
        elif job.left_over(where):
            wrong = f"left over: {job.left_over(where)}"
    shutil.rmtree(where)
    return wrong and f"{number.name} after {seconds:.3f} s: {wrong}", took, result.code != 0


@pytest.mark.slow
def test_signals_at_random_stop_a_run_that_can_be_taken_up(
    runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None]
) -> None:
    choose = random.Random(8)
    begin = time.monotonic()
    job = SmallJob("out.parquet", 24)
    runs.run(RunSpec(job.argv, job.make(tmp_path / "timed"), StandIn(step_seconds=0.002)))
    longest = time.monotonic() - begin
    outcomes = []
    for at in range(100):
        number = list(CODES)[at % 4]
        job = SmallJob(choose.choice(OUTPUTS), 24, choose.random() < 0.3)
        outcomes.append(stop_one(runs, job, tmp_path / "job", number, choose.uniform(0.0, longest)))
    failures = [wrong for wrong, _, _ in outcomes if wrong]
    slowest = max(took for _, took, _ in outcomes)
    num_stopped = sum(was_stopped for _, _, was_stopped in outcomes)
    figure(
        "signals to the command",
        f"{len(outcomes)} at random, {num_stopped} before the end, the slowest {slowest:.1f} s, {len(failures)} wrong",
    )
    assert failures == []
    assert slowest <= MOST_SECONDS


@pytest.mark.parametrize("number", CODES)
def test_signal_stops_a_run_that_is_taken_up(runs: ForkedRuns, tmp_path: Path, number: signal.Signals) -> None:
    job = SmallJob("out.parquet", 24)
    wrong, _, _ = stop_one(runs, job, tmp_path / "job", number, 0.1)
    assert wrong == ""
