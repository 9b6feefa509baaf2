"""kill -9 at any instant, on a real file system: the same command again ends with every row once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from forked_runs import SUPPORT, RunSpec
from small_jobs import OUTPUTS, SmallJob, saved_rows, verify
from storage_calls import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forked_runs import ForkedRuns

pytestmark = pytest.mark.reliability

NUM_KILLS = int(os.environ.get("INFER_TEST_KILLS", "200"))
MOST_IN_A_ROW = 3
"""More, and a row may be taken for what brings the process down: four times it was there."""


class Killer:
    """Kills runs, and counts what came of it."""

    def __init__(self, runs: ForkedRuns, directory: Path, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.seed = seed
        self._runs = runs
        self._directory = directory
        directory.mkdir(exist_ok=True)
        self._random = random.Random(seed)
        self._num_calls: dict[tuple[str, bool], int] = {}
        self._seconds = 0.5
        """Of an undisturbed run, as the last ones were."""

    def kill_one_job(self, job: SmallJob, *, most_in_a_row: int = MOST_IN_A_ROW) -> None:
        """Run it, kill it a few times, and run it to its end."""
        choose = self._random
        where = job.make(self._directory / "job")
        for _ in range(choose.randint(1, most_in_a_row)):
            told = self._run_and_kill(job, RunSpec(self._argv(job, where), where))
            self.counts["runs"] += 1
            holds = job.holds(where)
            if holds not in job.may_hold():
                self._fail("partial", f"{told}: {holds}")
        saved = saved_rows(where)
        argv = self._argv(job, where)
        begin = time.monotonic()
        result = self._runs.run(RunSpec(argv, where))
        self._seconds = 0.9 * self._seconds + 0.1 * (time.monotonic() - begin)
        if result.code != 0 or "Traceback" in result.err:
            self._fail("stuck", f"{told}: exit {result.code}: {result.err}")
        elif job.holds(where) != "new":
            rows = Counter(row["_row"] for row in job.rows(where))
            self._fail("lost", f"{told}: {[row for row in range(job.num_rows) if not rows[row]]}")
            self._fail("twice", f"{told}: {[row for row, times in rows.items() if times > 1]}")
            self._fail("wrong", f"{told}: {job.holds(where)}")
        elif "--restart" not in argv and saved.intersection(result.requests):
            self._fail("saved rows run again", f"{told}: {saved.intersection(result.requests)}")
        elif job.left_over(where):
            self._fail("left over", f"{told}: {job.left_over(where)}")
        elif found := verify(self._runs, job, where):
            self._fail("not verified", f"{told}: {found}")
        shutil.rmtree(where)

    def _argv(self, job: SmallJob, where: Path) -> tuple[str, ...]:
        """Now and then all over again, while there is no output that this would stand against."""
        is_restart = self._random.random() < 0.1 and job.holds(where) != "new"
        return (*job.argv, "--restart") if is_restart else job.argv

    def _run_and_kill(self, job: SmallJob, spec: RunSpec) -> str:
        choose = self._random
        if choose.random() < 0.5:
            seconds = choose.uniform(0.0, 1.2) * self._seconds
            run = self._runs.start(spec)
            time.sleep(seconds)
            run.kill()
            result = run.wait()
            told = f"{spec.argv} after {seconds:.3f} s"
        else:
            fault = Fault(choose.randrange(self._calls_of(job)), choose.choice(["crash before", "crash after"]))
            result = self._runs.run(replace(spec, fault=fault))
            told = f"{spec.argv} at {fault}"
        self.counts["killed" if result.code == -signal.SIGKILL else "ended before"] += 1
        if result.code not in (0, -signal.SIGKILL):
            self._fail("stuck", f"{told}: exit {result.code}: {result.err}")
        return told

    def _calls_of(self, job: SmallJob) -> int:
        key = (job.output, job.has_old)
        if key not in self._num_calls:
            where = job.make(self._directory / "counted")
            self._num_calls[key] = len(self._runs.run(RunSpec(job.argv, where, is_traced=True)).calls)
            shutil.rmtree(where)
        return self._num_calls[key]

    def _fail(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.failures.append(f"{kind}: {text}")


def kill_jobs(killer: Killer, num_kills: int, seed: int) -> None:
    choose = random.Random(seed)
    while killer.counts["killed"] < num_kills:
        flags = ("--save-interval", choose.choice(["0", "0.01", "30"]))
        killer.kill_one_job(SmallJob(choose.choice(OUTPUTS), 24, choose.random() < 0.3, flags))


@pytest.mark.slow
def test_killed_runs_end_with_every_row_once(
    runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None]
) -> None:
    begin = time.monotonic()
    killers = [Killer(runs, tmp_path / str(seed), seed) for seed in range(2)]
    with ThreadPoolExecutor(len(killers)) as pool:
        list(pool.map(lambda killer: kill_jobs(killer, NUM_KILLS // len(killers), killer.seed), killers))
    counts = sum((killer.counts for killer in killers), Counter())
    figure(
        "kill -9",
        f"{counts['killed']} kills, {counts['lost']} lost, {counts['twice']} twice, {counts['partial']} partial, "
        f"{counts['saved rows run again']} saved rows run again, {time.monotonic() - begin:.0f} s",
    )
    assert [failure for killer in killers for failure in killer.failures] == []


def test_killed_run_is_taken_up(runs: ForkedRuns, tmp_path: Path) -> None:
    killer = Killer(runs, tmp_path, seed=2)
    kill_jobs(killer, 6, seed=2)
    assert killer.failures == []


@pytest.mark.slow
def test_program_that_is_killed_is_taken_up(tmp_path: Path, figure: Callable[[str, str], None]) -> None:
    """Not a forked child, but the program as a user starts it."""
    job = SmallJob("out.parquet", 400)
    where = job.make(tmp_path / "job")
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "STAND_IN": '{"step_seconds": 0.01}'}
    command = [sys.executable, str(SUPPORT / "stand_in_cli.py"), *job.argv]
    num_killed = 0
    for _ in range(MOST_IN_A_ROW):
        before = saved_rows(where)
        with subprocess.Popen(command, cwd=where, env=environment, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and not saved_rows(where) - before:
                time.sleep(0.01)
            process.kill()
        num_killed += process.returncode == -signal.SIGKILL
        assert job.holds(where) in job.may_hold()
    subprocess.run(command, cwd=where, env=environment, check=True, capture_output=True)
    assert job.holds(where) == "new"
    figure("kill -9 of the program", f"{num_killed} kills in a row, 0 lost, 0 twice, 0 partial")
    assert num_killed == MOST_IN_A_ROW
