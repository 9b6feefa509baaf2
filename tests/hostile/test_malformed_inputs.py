"""Malformed files through the whole command: never a traceback, a hang or a full memory, and the message says where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import malformed_jsonl
import malformed_parquet
import pyarrow.parquet as pq
import pytest
from echo_engine import EchoEngine, identify_echo
from malformed import INPUT, ROW_ERRORS, Malformed

from infer.cli.app import main

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.reliability

SUPPORT = Path(__file__).parents[1] / "support"
CASES = [*malformed_jsonl.CASES, *malformed_parquet.CASES]
SMALL = [case for case in CASES if not case.is_large]
MOST_SECONDS = 10
MOST_BYTES = 2 << 30


def command(case: Malformed, source: Path, output: Path) -> list[str]:
    return ["run", str(source), "-o", str(output), "--seed", "0", "--max-tokens", "4", *case.arguments]


def check(case: Malformed, source: Path, output: Path, code: int, said: str) -> None:
    """Whether `said` and the rows of `output` are right for `case`."""
    assert code in case.codes, said
    assert "Traceback" not in said
    if code == INPUT and "already has a column" not in said:
        assert case.name in said, said
    errors = row_errors(output) if code == ROW_ERRORS else []
    assert bool(errors) == (code == ROW_ERRORS)
    assert case.message in said or any(case.message in error for _, error in errors), said
    if case.places and source.suffix == ".parquet":
        assert [row for row, _ in errors] == list(case.places)
        assert all(error.startswith(f"{source}: row {row}: ") for row, error in errors)
    elif case.places:
        assert [error.partition(": ")[0] for _, error in errors] == [f"{source}:{line}" for line in case.places]


def row_errors(output: Path) -> list[tuple[int, str]]:
    table = pq.read_table(output, columns=["_row", "error"]).to_pylist()
    return [(row["_row"], row["error"]) for row in table if row["error"] is not None]


def test_malformed_files_are_many_and_have_names_of_their_own() -> None:
    assert len(SMALL) >= 150
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.fixture(scope="module")
def engine() -> EchoEngine:
    return EchoEngine()


@pytest.mark.parametrize("case", SMALL, ids=[case.name for case in SMALL])
def test_malformed_file_is_an_error_that_says_where(
    case: Malformed,
    engine: EchoEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("infer.engine.engine.Engine", lambda _config, _say: engine)
    monkeypatch.setattr("infer.engine.model_identity.identify_model", identify_echo)
    source, output = case.write(tmp_path), tmp_path / "out.parquet"
    code = main(command(case, source, output))
    check(case, source, output, code, capsys.readouterr().err)


GUARDED_RUNS = """
import json, os, resource, signal, sys
from pathlib import Path
import infer.engine.engine, infer.engine.model_identity
from echo_engine import EchoEngine, identify_echo
from infer.cli.app import main
import infer.cli.job, pyarrow.parquet
infer.engine.engine.Engine = lambda config, say: EchoEngine()
infer.engine.model_identity.identify_model = identify_echo

def virtual_bytes():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

for line in sys.stdin:
    arguments, said = json.loads(line)
    child = os.fork()
    if child == 0:
        # What libraries reserve and never touch comes on top.
        most = virtual_bytes() + int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        signal.alarm(6 * int(sys.argv[1]))
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
        os._exit(main(arguments))
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    print(json.dumps([os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * 1024]), flush=True)
"""


def run_guarded(commands: Sequence[tuple[list[str], Path]]) -> list[tuple[int, float, int]]:
    """Exit code, seconds of a processor and peak of each, in a process of its own whose memory and time are limited."""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    lines = "".join(json.dumps([arguments, str(said)]) + "\n" for arguments, said in commands)
    guarded = [sys.executable, "-c", GUARDED_RUNS, str(MOST_SECONDS), str(MOST_BYTES)]
    done = subprocess.run(guarded, env=environment, check=True, input=lines, text=True, stdout=subprocess.PIPE)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_malformed_files_are_quick_and_small(tmp_path: Path, figure: Callable[[str, str], None]) -> None:
    paths = [tmp_path / str(number) for number in range(len(CASES))]
    commands = []
    for case, path in zip(CASES, paths, strict=True):
        path.mkdir()
        commands.append((command(case, case.write(path), path / "out.parquet"), path / "said"))
    results = run_guarded(commands)
    for case, path, (code, seconds, num_bytes) in zip(CASES, paths, results, strict=True):
        check(case, path / case.name, path / "out.parquet", code, (path / "said").read_text())
        assert seconds < MOST_SECONDS, case.name
        assert num_bytes < MOST_BYTES, case.name
    slowest = max((seconds, case.name) for case, (_, seconds, _) in zip(CASES, results, strict=True))
    largest = max((num_bytes >> 20, case.name) for case, (_, _, num_bytes) in zip(CASES, results, strict=True))
    figure(
        "malformed inputs",
        f"{len(CASES)} files, none with a traceback: at most {slowest[0]:.1f} s ({slowest[1]})"
        f" and {largest[0]:,} MiB ({largest[1]})",
    )
