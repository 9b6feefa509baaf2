"""Each call of the storage fails, in each way there is: the right exit code, a name, and nothing lost."""

from __future__ import annotations

import ast
import inspect
import os
import random
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from forked_runs import RunSpec
from small_jobs import SmallJob, saved_rows
from storage_calls import COUNTED, CRASHES, ERRORS, KINDS, SHORT, WRITES, Fault

from infer.io import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from forked_runs import ForkedRuns, RunResult

pytestmark = pytest.mark.reliability

HAS_ALL = "INFER_TEST_ALL_FAULTS" in os.environ
_UNCOUNTED = {"strerror", "path"}
"""Of `os`: no calls of the system, or calls that only look."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A job, and how an earlier run of it was killed."""

    job: SmallJob
    killed_at: float | None = None
    """After this share of its calls."""


SCENES = {
    "fresh Parquet": Scene(SmallJob("out.parquet", 6)),
    "fresh JSONL": Scene(SmallJob("out.jsonl", 6)),
    "fresh directory": Scene(SmallJob("out/", 6)),
    "overwritten Parquet": Scene(SmallJob("out.parquet", 6, has_old=True)),
    "overwritten directory": Scene(SmallJob("out/", 6, has_old=True)),
    "resumed": Scene(SmallJob("out.parquet", 6), 0.5),
    "resumed in publishing": Scene(SmallJob("out/", 6, has_old=True), 0.8),
}


class Stage:
    """A scene made ready once, and played with one fault after the other."""

    def __init__(self, runs: ForkedRuns, directory: Path, scene: Scene) -> None:
        self.job = scene.job
        self._runs = runs
        self._directory = directory
        directory.mkdir()
        self._template = self.job.make(directory / "template")
        if scene.killed_at is not None:
            fault = Fault(int(len(self._count()) * scene.killed_at), "crash before")
            assert self._run(self._template, fault).code == -signal.SIGKILL
        self.calls = self._count()
        """Of an undisturbed run, by name."""

    def faults(self, *, each_error: bool) -> list[Fault]:
        """Of every call every kind; of the errors one after the other unless `each_error`."""
        found = []
        for number, name in enumerate(self.calls):
            for kind in KINDS:
                if kind in ERRORS and not each_error and kind != ERRORS[number % len(ERRORS)]:
                    continue
                if kind != "short" or name in SHORT:
                    found.append(Fault(number, kind))
        return found

    def play(self, fault: Fault) -> str:
        """What is wrong with what came of it: nothing where all is well."""
        where = self._directory / f"{fault.number}-{fault.kind}-{fault.stays}"
        shutil.copytree(self._template, where)
        try:
            return self._check(where, fault)
        finally:
            shutil.rmtree(where)

    def _check(self, where: Path, fault: Fault) -> str:
        job, name = self.job, self.calls[fault.number]
        result = self._run(where, fault)
        told = f"{fault} {name}: exit {result.code}"
        if job.holds(where) not in job.may_hold():
            return f"{told}, the output holds {job.holds(where)}"
        if wrong := self._wrong_end(where, fault, result):
            return f"{told}, {wrong}: {result.err}"
        saved = saved_rows(where)
        again = self._run(where, None)
        told = f"{told}, then {again.code}"
        if again.code != 0 or job.holds(where) != "new":
            return f"{told}, the output holds {job.holds(where)}: {again.err}"
        if saved.intersection(again.requests):
            return f"{told}, saved rows run again: {saved.intersection(again.requests)}"
        left = job.left_over(where)
        return f"{told}, left over: {left}" if left else ""

    def _wrong_end(self, where: Path, fault: Fault, result: RunResult) -> str:
        if fault.kind in CRASHES:
            return "" if result.code == -signal.SIGKILL else "no crash"
        if "Traceback" in result.err or "bug in infer" in result.err:
            return "a traceback"
        if result.code == 0:
            if fault.kind != "short" and self.calls[fault.number] in WRITES:
                return "not told"
            return "" if self.job.holds(where) == "new" else "not the output"
        if fault.kind == "short" or result.code != 7:
            return "the wrong exit code"
        return "" if str(where) in result.err else "no name"

    def _count(self) -> list[str]:
        where = shutil.copytree(self._template, self._directory / "counted")
        result = self._runs.run(RunSpec(self.job.argv, where, is_traced=True, syncs=False))
        shutil.rmtree(where)
        assert result.code == 0, result.err
        return result.calls

    def _run(self, where: Path, fault: Fault | None) -> RunResult:
        return self._runs.run(RunSpec(self.job.argv, where, fault=fault, syncs=False))


def play_all(stage: Stage, faults: Iterable[Fault]) -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        return [wrong for wrong in pool.map(stage.play, faults) if wrong]


def test_every_call_of_the_storage_is_counted() -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(storage)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "fcntl")
    }
    calls = {
        name
        for name in used
        if name.islower() and callable(getattr(os, name, None) or getattr(storage.fcntl, name, None))
    }
    # `spool` copies standard input, of which nothing is saved.
    assert calls - COUNTED - _UNCOUNTED == {"dup"}


@pytest.mark.parametrize("name", SCENES)
def test_some_faults_lose_nothing(runs: ForkedRuns, tmp_path: Path, name: str) -> None:
    stage = Stage(runs, tmp_path / "stage", SCENES[name])
    faults = random.Random(name).sample(stage.faults(each_error=True), 8)
    assert play_all(stage, faults) == []


@pytest.mark.slow
def test_every_fault_of_every_call_loses_nothing(
    runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None]
) -> None:
    counts: Counter[str] = Counter()
    failures = []
    for name, scene in SCENES.items():
        stage = Stage(runs, tmp_path / name.replace(" ", "-"), scene)
        faults = stage.faults(each_error=HAS_ALL or name == "fresh Parquet")
        counts["calls"] += len(stage.calls)
        counts["faults"] += len(faults)
        failures += [f"{name}: {wrong}" for wrong in play_all(stage, faults)]
    figure(
        "faults", f"{counts['calls']} calls in {len(SCENES)} scenes, {counts['faults']} faults, {len(failures)} wrong"
    )
    assert failures == []


@pytest.mark.slow
def test_disk_that_stays_full_loses_nothing(
    runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None]
) -> None:
    failures = []
    num_faults = 0
    for name in ("fresh Parquet", "overwritten directory", "resumed"):
        stage = Stage(runs, tmp_path / name.replace(" ", "-"), SCENES[name])
        faults = [Fault(at, "ENOSPC", stays=True) for at, call in enumerate(stage.calls) if call in WRITES]
        num_faults += len(faults)
        failures += [f"{name}: {wrong}" for wrong in play_all(stage, faults)]
    figure("disk that stays full", f"{num_faults} faults, {len(failures)} wrong")
    assert failures == []
