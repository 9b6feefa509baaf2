"""A row that brings the process down: the same command, again and again, ends without it, and with all the others."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from forked_runs import RunSpec
from small_jobs import SmallJob
from stand_in_cli import StandIn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forked_runs import ForkedRuns

pytestmark = pytest.mark.reliability

MOST_RUNS = 5
"""Twice among others, twice alone, and one to the end."""


def run_until_it_ends(runs: ForkedRuns, job: SmallJob, where: Path, stand_in: StandIn) -> list[list[int]]:
    """The requests of each run; the last one has ended."""
    requests = []
    for _ in range(20):
        result = runs.run(RunSpec(job.argv, where, stand_in))
        requests.append(result.requests)
        if result.code != -signal.SIGKILL:
            assert result.code == 0, result.err
            return requests
    raise AssertionError("it never ends")


def errors(job: SmallJob, where: Path) -> dict[int, str]:
    lines = (where / job.output).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["_row"] for row in rows] == list(range(job.num_rows))
    assert all(row["response"] == job.text(row["_row"]) for row in rows if row["error_code"] is None)
    return {row["_row"]: row["error_code"] for row in rows if row["error_code"] is not None}


@pytest.mark.parametrize("row", [0, 17, 39])
def test_row_that_kills_the_process_is_poison(
    runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None], row: int
) -> None:
    job = SmallJob("out.jsonl", 40)
    where = job.make(tmp_path / "job")
    requests = run_until_it_ends(runs, job, where, StandIn(hostile_rows=(row,)))
    assert errors(job, where) == {3: "empty_prompt", row: "poison"}
    assert len(requests) <= MOST_RUNS
    # Nobody else was with it when it ran alone, and what was done before that was not done again.
    assert [row in each for each in requests[2:]] == [True] * (len(requests) - 3) + [False]
    assert sum(len(each) for each in requests) <= 2 * job.num_rows + MOST_RUNS * 20
    figure("row that kills the process", f"row {row} of {job.num_rows}: poison in run {len(requests)}")


@pytest.mark.parametrize("row", [0, 39])
def test_row_whose_prompt_kills_the_process_before_it_is_one_is_poison(
    runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None], row: int
) -> None:
    job = SmallJob("out.jsonl", 40)
    where = job.make(tmp_path / "job")
    requests = run_until_it_ends(runs, job, where, StandIn(hostile_prompts=(job.text(row),)))
    assert errors(job, where) == {3: "empty_prompt", row: "poison"}
    assert len(requests) <= MOST_RUNS
    figure("row whose prompt kills the process", f"row {row} of {job.num_rows}: poison in run {len(requests)}")


@pytest.mark.slow
def test_rows_that_kill_the_process_are_poison(
    runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None]
) -> None:
    job = SmallJob("out.jsonl", 200)
    where = job.make(tmp_path / "job")
    hostile = (20, 21, 150)
    requests = run_until_it_ends(runs, job, where, StandIn(hostile_rows=hostile))
    assert errors(job, where) == {3: "empty_prompt"} | dict.fromkeys(hostile, "poison")
    figure("rows that kill the process", f"{len(hostile)} of {job.num_rows}: poison in run {len(requests)}")
    assert len(requests) <= 3 + 2 * len(hostile)


def test_rows_are_not_run_alone_after_one_death(runs: ForkedRuns, tmp_path: Path) -> None:
    job = SmallJob("out.jsonl", 40, flags=("--save-interval", "30"))
    where = job.make(tmp_path / "job")
    assert runs.run(RunSpec(job.argv, where, StandIn(hostile_rows=(17,)))).code == -signal.SIGKILL
    result = runs.run(RunSpec(job.argv, where))
    assert result.code == 0
    assert "run alone" not in result.err
    assert errors(job, where) == {3: "empty_prompt"}
