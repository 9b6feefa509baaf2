"""What is saved of a run is damaged: the right output all the same, or a refusal that says what and what to do."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from forked_runs import RunSpec
from small_jobs import SmallJob
from storage_calls import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forked_runs import ForkedRuns, RunResult

    Damage = Callable[[bytes, random.Random], bytes | None]

pytestmark = pytest.mark.reliability


def _flip(data: bytes, choose: random.Random) -> bytes:
    at = choose.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :]


def _flip_at_the_end(data: bytes, choose: random.Random) -> bytes:
    at = max(0, len(data) - 1 - choose.randrange(20))
    return data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :]


def _without_a_line(data: bytes, choose: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[choose.randrange(len(lines))]
    return b"".join(lines)


def _with_a_line_twice(data: bytes, choose: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = choose.randrange(len(lines))
    return b"".join([*lines[:at], lines[at], *lines[at:]])


def _with_lines_swapped(data: bytes, choose: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    choose.shuffle(lines)
    return b"".join(lines)


DAMAGES: dict[str, Damage] = {
    "a bit flipped": _flip,
    "a bit flipped at the end": _flip_at_the_end,
    "cut off": lambda data, choose: data[: choose.randrange(len(data))],
    "zeros at the end": lambda data, choose: (cut := data[: choose.randrange(len(data))]) + bytes(len(data) - len(cut)),
    "something at the end": lambda data, choose: data + choose.randbytes(choose.randint(1, 40)),
    "emptied": lambda data, choose: b"",
    "gone": lambda data, choose: None,
}
LINE_DAMAGES: dict[str, Damage] = {
    "without a line": _without_a_line,
    "with a line twice": _with_a_line_twice,
    "with lines swapped": _with_lines_swapped,
}
STAGES = {"half way": 0.55, "published, and not said so": 0.93, "ended": 1.0}


class DamagedJob:
    """A job that was killed at some point, and copies of it that are damaged."""

    def __init__(self, runs: ForkedRuns, directory: Path, job: SmallJob, share: float) -> None:
        directory.mkdir()
        self.job = job
        self._runs = runs
        self._directory = directory
        self._whole = job.make(directory / "whole")
        counted = shutil.copytree(self._whole, directory / "counted")
        num_calls = len(runs.run(RunSpec(job.argv, counted, is_traced=True, syncs=False)).calls)
        fault = Fault(int(num_calls * share), "crash before") if share < 1 else None
        result = runs.run(RunSpec(job.argv, self._whole, fault=fault, syncs=False))
        assert result.code == (-signal.SIGKILL if share < 1 else 0)
        self._state = f"{job.output.rstrip('/')}.infer"

    def cases(self, choose: random.Random, num_each: int) -> list[tuple[str, str, int]]:
        """The file, the damage and its seed."""
        found = []
        for path in sorted((self._whole / self._state).iterdir()):
            kinds = DAMAGES | (LINE_DAMAGES if path.name == "journal" else {})
            num = num_each if path.name in ("journal", "run.json") else 1
            found += [(path.name, kind, choose.randrange(1 << 30)) for kind in kinds for _ in range(num)]
        return found

    def play(self, case: tuple[str, str, int]) -> tuple[str, str]:
        """How it came out, and what is wrong with that: nothing where all is well."""
        name, kind, seed = case
        where = self._directory / f"{name}-{kind}-{seed}".replace(" ", "-")
        shutil.copytree(self._whole, where)
        path = where / self._state / name
        damaged = {**DAMAGES, **LINE_DAMAGES}[kind](path.read_bytes(), random.Random(seed))
        path.unlink() if damaged is None else path.write_bytes(damaged)
        outcome, wrong = self._check(where)
        shutil.rmtree(where)
        return outcome, wrong and f"{name} {kind} ({seed}): {wrong}"

    def _check(self, where: Path) -> tuple[str, str]:
        job = self.job
        before = job.holds(where)
        result = self.run(where)
        told = f"exit {result.code}: {result.err}"
        if result.code == 0:
            holds = job.holds(where)
            return "right", "" if holds == "new" else f"{told}, the output holds {holds}"
        if result.code not in (5, 7) or "Traceback" in result.err:
            return "wrong", told
        if str(where) not in result.err or "hint: " not in result.err:
            return "refused", f"no name or no hint: {told}"
        if job.holds(where) != before:
            return "refused", f"{told}, the output held {before} and holds {job.holds(where)}"
        again = self.run(where, "--restart", "--overwrite")
        if again.code != 0 or job.holds(where) != "new":
            return "refused", f"{told}, then exit {again.code}: {again.err}, the output holds {job.holds(where)}"
        return "refused", ""

    def run(self, where: Path, *flags: str) -> RunResult:
        return self._runs.run(RunSpec((*self.job.argv, *flags), where, syncs=False))


@pytest.mark.slow
def test_damaged_state_gives_the_right_output_or_a_refusal(
    runs: ForkedRuns, tmp_path: Path, figure: Callable[[str, str], None]
) -> None:
    choose = random.Random(5)
    outcomes: Counter[str] = Counter()
    failures = []
    for stage, share in STAGES.items():
        for output in ("out.parquet", "out.jsonl"):
            damaged = DamagedJob(runs, tmp_path / f"{output}-{share}", SmallJob(output, 6), share)
            with ThreadPoolExecutor(2) as pool:
                for outcome, wrong in pool.map(damaged.play, damaged.cases(choose, 1)):
                    outcomes[outcome] += 1
                    failures += [f"{stage} {output}: {wrong}"] if wrong else []
    told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
    figure("damaged state", f"{outcomes.total()} cases: {told}; {len(failures)} wrong")
    print(*failures, sep="\n")
    assert outcomes.total() >= 100
    assert failures == []


def test_some_damage_gives_the_right_output_or_a_refusal(runs: ForkedRuns, tmp_path: Path) -> None:
    damaged = DamagedJob(runs, tmp_path / "job", SmallJob("out.parquet", 6), 0.55)
    choose = random.Random(6)
    played = [damaged.play(case) for case in choose.sample(damaged.cases(choose, 1), 8)]
    assert [wrong for _, wrong in played if wrong] == []
    assert {outcome for outcome, _ in played} == {"right", "refused"}


def test_journal_that_is_damaged_in_the_middle_is_named(runs: ForkedRuns, tmp_path: Path) -> None:
    damaged = DamagedJob(runs, tmp_path / "job", SmallJob("out.parquet", 6), 0.55)
    journal = tmp_path / "job" / "whole" / "out.parquet.infer" / "journal"
    journal.write_bytes(b"x" + journal.read_bytes()[1:])
    result = damaged.run(tmp_path / "job" / "whole")
    assert result.code == 7
    assert f": {journal}\nhint: " in result.err


def test_segment_never_takes_the_name_of_another(runs: ForkedRuns, tmp_path: Path) -> None:
    damaged = DamagedJob(runs, tmp_path / "job", SmallJob("out.parquet", 6), 0.55)
    where = tmp_path / "job" / "whole"
    journal = where / "out.parquet.infer" / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    first = next(line for line in lines if b"segment" in line)
    journal.write_bytes(b"".join(line for line in lines if line != first))
    assert damaged.run(where).code == 0
    assert damaged.job.holds(where) == "new"
