"""What a run that was killed while it published leaves beside the output, and that the next one takes it away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from forked_runs import RunSpec
from small_jobs import OUTPUTS, SmallJob
from storage_calls import Fault

if TYPE_CHECKING:
    from pathlib import Path

    from forked_runs import ForkedRuns


def number_of(runs: ForkedRuns, job: SmallJob, directory: Path, name: str) -> int:
    """Of the last call `name` in an undisturbed run."""
    calls = runs.run(RunSpec(job.argv, job.make(directory), is_traced=True)).calls
    return len(calls) - 1 - calls[::-1].index(name)


@pytest.mark.parametrize("output", OUTPUTS)
def test_restart_takes_away_what_was_left_aside(runs: ForkedRuns, tmp_path: Path, output: str) -> None:
    job = SmallJob(output)
    name = "rename" if output == "out/" else "link"
    fault = Fault(number_of(runs, job, tmp_path / "counted", name), "crash before")
    where = job.make(tmp_path / "job")
    runs.run(RunSpec(job.argv, where, fault=fault))
    assert len(job.left_over(where)) > 1
    assert runs.run(RunSpec((*job.argv, "--restart"), where)).code == 0
    assert job.holds(where) == "new"
    assert job.left_over(where) == []


@pytest.mark.parametrize("output", ["out.parquet", "out.jsonl"])
def test_second_name_of_a_published_file_is_taken_away(runs: ForkedRuns, tmp_path: Path, output: str) -> None:
    job = SmallJob(output)
    fault = Fault(number_of(runs, job, tmp_path / "counted", "link"), "crash after")
    where = job.make(tmp_path / "job")
    runs.run(RunSpec(job.argv, where, fault=fault))
    assert job.holds(where) == "new"
    again = runs.run(RunSpec(job.argv, where))
    assert (again.code, again.requests) == (0, [])
    assert job.left_over(where) == []


def test_old_directory_comes_back_where_the_new_one_has_not_come(runs: ForkedRuns, tmp_path: Path) -> None:
    job = SmallJob("out/", has_old=True)
    fault = Fault(number_of(runs, job, tmp_path / "counted", "rename"), "crash before")
    where = job.make(tmp_path / "job")
    runs.run(RunSpec(job.argv, where, fault=fault))
    assert job.holds(where) == "nothing"
    refused = runs.run(RunSpec(tuple(each for each in job.argv if each != "--overwrite"), where))
    assert refused.code == 5
    assert job.holds(where) == "old"
    assert runs.run(RunSpec(job.argv, where)).code == 0
    assert (job.holds(where), job.left_over(where)) == ("new", [])


def test_restart_refuses_an_output_that_is_there_before_it_discards(runs: ForkedRuns, tmp_path: Path) -> None:
    job = SmallJob("out.jsonl")
    where = job.make(tmp_path / "job")
    runs.run(RunSpec(job.argv, where))
    assert runs.run(RunSpec((*job.argv, "--restart"), where)).code == 5
    again = runs.run(RunSpec(job.argv, where))
    assert (again.code, again.requests) == (0, [])
