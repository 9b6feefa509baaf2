"""Two runs on one output, started at once: one does it, the other says who does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from forked_runs import RunSpec
from small_jobs import OUTPUTS, SmallJob
from stand_in_cli import StandIn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forked_runs import ForkedRuns

pytestmark = pytest.mark.reliability

SLOW = StandIn(step_seconds=0.02)
"""So that the other comes while it runs."""


def race(runs: ForkedRuns, job: SmallJob, where: Path) -> str:
    """What is wrong with what came of it: nothing where all is well."""
    job.make(where)
    starts_at = time.monotonic() + 0.05
    pair = [runs.start(RunSpec(job.argv, where, SLOW, starts_at=starts_at)) for _ in range(2)]
    results = [run.wait() for run in pair]
    codes = [result.code for result in results]
    if sorted(codes) != [0, 6]:
        return f"exits {codes}: {[result.err for result in results]}"
    winner, loser = codes.index(0), codes.index(6)
    if f"process {pair[winner].pid} " not in results[loser].err:
        return f"the winner {pair[winner].pid} is not named: {results[loser].err}"
    if results[loser].requests:
        return f"the loser ran rows: {results[loser].requests}"
    if job.holds(where) != "new" or job.left_over(where):
        return f"the output holds {job.holds(where)}, left over: {job.left_over(where)}"
    return ""


@pytest.mark.slow
def test_pairs_have_one_winner_each(runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None]) -> None:
    pairs = [SmallJob(OUTPUTS[number % 3]) for number in range(100)]
    wrong = [race(runs, job, tmp_path / str(number)) for number, job in enumerate(pairs)]
    failures = [each for each in wrong if each]
    figure("two runs on one output", f"{len(pairs)} pairs, {len(pairs) - len(failures)} with one winner")
    assert failures == []


@pytest.mark.parametrize("output", OUTPUTS)
def test_second_run_says_who_is_at_it(runs: ForkedRuns, tmp_path: Path, output: str) -> None:
    assert race(runs, SmallJob(output), tmp_path / "job") == ""
