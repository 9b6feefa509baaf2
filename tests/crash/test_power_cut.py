"""The power is cut after any operation: whatever the disk has kept, what was said to be saved is, and the run goes on.

States of the disk are built from what real runs have asked of the storage, see `power_cut.py`; the real command then
runs on each of them. The same is done with protocols that are broken: each has to be found out.
"""

from __future__ import annotations

import random
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from broken_protocols import BROKEN
from forked_runs import RunSpec
from power_cut import Disk, write_tree
from small_jobs import SmallJob
from storage_calls import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forked_runs import ForkedRuns
    from power_cut import Tree
    from storage_trace import Operation

pytestmark = pytest.mark.reliability


@dataclass(frozen=True, slots=True)
class Scene:
    """A job, and at which call each process was killed that worked on it before: how, its name, which of that name."""

    job: SmallJob
    killed_at: tuple[tuple[str, str, int], ...] = ()
    broken: str | None = None


SCENES = {
    "Parquet": Scene(SmallJob("out.parquet", 6)),
    "JSONL": Scene(SmallJob("out.jsonl", 6)),
    "directory": Scene(SmallJob("out/", 6)),
    "overwritten Parquet": Scene(SmallJob("out.parquet", 6, has_old=True)),
    "overwritten directory": Scene(SmallJob("out/", 6, has_old=True)),
    "killed before the state directory was synced": Scene(SmallJob("out.parquet", 6), (("crash after", "mkdir", 0),)),
    "killed before a line was synced": Scene(
        SmallJob("out.parquet", 6), (("crash before", "fdatasync", 1), ("crash before", "fdatasync", 2))
    ),
    "killed before the output's name was synced": Scene(SmallJob("out.parquet", 6), (("crash after", "link", 0),)),
    "killed between two renames": Scene(SmallJob("out/", 6, has_old=True), (("crash before", "rename", -1),)),
    "killed before the new directory's name was synced": Scene(
        SmallJob("out/", 6, has_old=True), (("crash after", "rename", -1),)
    ),
}


@dataclass(frozen=True, slots=True)
class Cut:
    """A state of the disk, and what was promised by then."""

    told: str
    tree: Tree
    saved: frozenset[int]


@dataclass
class Recording:
    """What the runs of a scene have asked of the storage."""

    before: Path
    operations: list[list[Operation]] = field(default_factory=list)
    """By process."""


def record(runs: ForkedRuns, scene: Scene, directory: Path) -> Recording:
    directory.mkdir(parents=True)
    before = scene.job.make(directory / "before")
    where = shutil.copytree(before, directory / "where")
    spec = RunSpec(scene.job.argv, where, is_traced=True, syncs=False, broken=scene.broken)
    recording = Recording(before)
    for number, (kind, name, which) in enumerate(scene.killed_at):
        counted = shutil.copytree(where, directory / f"counted-{number}")
        calls = runs.run(RunSpec(spec.argv, counted, is_traced=True, syncs=False)).calls
        fault = Fault([at for at, call in enumerate(calls) if call == name][which], kind)
        result = runs.run(replace(spec, fault=fault))
        assert result.code == -signal.SIGKILL
        recording.operations.append(result.trace)
    result = runs.run(spec)
    assert result.code == 0, result.err
    recording.operations.append(result.trace)
    return recording


def cuts(recording: Recording, choose: random.Random, num_random: int) -> Iterator[Cut]:
    """Each state once, with the most that was promised when it could come about."""
    root = recording.before.with_name("where")
    disk = Disk(recording.before, root)
    saved: frozenset[int] = frozenset()
    seen: set[tuple[object, ...]] = set()
    for process, operations in enumerate(recording.operations, 1):
        disk.begin_process()
        for number, operation in enumerate(operations):
            saved |= operation.saved
            if operation.name == "end":
                # It has exited, and said so: all is done.
                saved |= frozenset(range(1 << 10))
            # What may come of the first process alone is looked at in the scenes in which nothing was killed.
            if process == len(recording.operations):
                for told, tree in disk.cuts(choose, num_random):
                    key = (saved, tuple(sorted(tree.items())))
                    if key not in seen:
                        seen.add(key)
                        yield Cut(f"before {number} {operation.name}: {told}", tree, saved)
            if operation.name != "end":
                disk.do(operation)


class Recovery:
    """Runs the command again where the power was cut."""

    def __init__(self, runs: ForkedRuns, scene: Scene, directory: Path) -> None:
        self._runs = runs
        self._scene = scene
        self._directory = directory
        directory.mkdir()

    def check(self, cut: tuple[int, Cut]) -> str:
        """What is wrong: nothing where all is well."""
        where = self._directory / str(cut[0])
        where.mkdir()
        write_tree(cut[1].tree, where)
        try:
            wrong = self._check(where, cut[1], runs_twice=self._scene.broken is not None or cut[0] % 4 == 0)
            return f"{cut[1].told}: {wrong}" if wrong else ""
        finally:
            shutil.rmtree(where)

    def _check(self, where: Path, cut: Cut, *, runs_twice: bool) -> str:
        job = self._scene.job
        spec = RunSpec(job.argv, where, syncs=False, broken=self._scene.broken)
        held = job.holds(where)
        if held not in job.may_hold():
            return f"the output holds {held}"
        result = self._runs.run(spec)
        if result.code != 0:
            return f"exit {result.code}: {result.err}"
        # A job that replaces what is there replaces its own output too, once that is there.
        if not (job.has_old and held == "new") and cut.saved.intersection(result.requests):
            return f"saved rows run again: {sorted(cut.saved.intersection(result.requests))}"
        if job.holds(where) != "new" or job.left_over(where):
            return f"the output holds {job.holds(where)}, left over: {job.left_over(where)}"
        if runs_twice and not job.has_old:
            again = self._runs.run(spec)
            if again.code != 0 or again.requests:
                return f"then exit {again.code}, rows run again: {again.requests}: {again.err}"
        return ""


def violations(
    runs: ForkedRuns, scene: Scene, directory: Path, *, most: int | None, num_random: int
) -> tuple[int, list[str]]:
    """How many states were looked at, and what was wrong."""
    choose = random.Random(str(scene))
    recording = record(runs, scene, directory)
    found = list(cuts(recording, choose, num_random))
    if most is not None and len(found) > most:
        found = choose.sample(found, most)
    recovery = Recovery(runs, scene, directory / "recovered")
    with ThreadPoolExecutor(2) as pool:
        return len(found), [wrong for wrong in pool.map(recovery.check, enumerate(found)) if wrong]


@pytest.mark.parametrize("name", SCENES)
def test_power_cut_loses_nothing(runs: ForkedRuns, tmp_path: Path, name: str) -> None:
    assert violations(runs, SCENES[name], tmp_path / "scene", most=8, num_random=1)[1] == []


@pytest.mark.slow
def test_power_cut_at_any_time_loses_nothing(
    runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None]
) -> None:
    num_states = 0
    failures = []
    for number, (name, scene) in enumerate(SCENES.items()):
        num, wrong = violations(runs, scene, tmp_path / str(number), most=None, num_random=1)
        num_states += num
        failures += [f"{name}: {each}" for each in wrong]
    figure("power cut", f"{num_states} states, {len(failures)} violations")
    assert num_states >= 1000
    assert failures == []


def is_found_out(runs: ForkedRuns, name: str, directory: Path) -> str:
    """The first violation that a broken protocol leads to; empty where none is seen."""
    if "old directory" in name:
        scene = SCENES["overwritten directory"]
    else:
        scene = SCENES["directory" if "directory output" in name else "Parquet"]
    scene = replace(scene, broken=name)
    choose = random.Random(name)
    found = list(cuts(record(runs, scene, directory), choose, num_random=2))
    choose.shuffle(found)
    recovery = Recovery(runs, scene, directory / "recovered")
    with ThreadPoolExecutor(2) as pool:
        for start in range(0, len(found), 8):
            for wrong in pool.map(recovery.check, enumerate(found[start : start + 8])):
                if wrong:
                    return wrong
    return ""


@pytest.mark.slow
def test_broken_protocols_are_found_out(runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None]) -> None:
    found = {name: is_found_out(runs, name, tmp_path / str(number)) for number, name in enumerate(BROKEN)}
    for name, wrong in found.items():
        print(f"{name}: {wrong:.200}")
    figure("broken protocols", f"{sum(map(bool, found.values()))} of {len(BROKEN)} found out")
    assert [name for name, wrong in found.items() if not wrong] == []


def test_broken_protocol_is_found_out(runs: ForkedRuns, tmp_path: Path) -> None:
    assert is_found_out(runs, "the journal is not synced", tmp_path / "scene")
