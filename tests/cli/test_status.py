"""`infer status`: what it prints, and what it exits with."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from echo_engine import EchoEngine
from echo_job import Crash, CrashingEngine, leave_lock, run_flags

from infer.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    texts = ["" if number == 9 else f"row {number}" for number in range(20)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tmp_path / "out.parquet.infer"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    capsys.readouterr()
    assert main(["status", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return {line[:12].rstrip(): line[12:] for line in out.splitlines()}


def test_run_that_is_done_is_told_in_lines(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_flags("in.jsonl", "out.parquet", EchoEngine(failures={3: ["oom"] * 9, 4: ["oom"] * 9}), model="echo")
    lines = said(capsys, "out.parquet")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\+00:00, \d+ s ago", lines.pop("last saved"))
    assert re.fullmatch(r"[0-9a-f]{16}, begun 20[\d:T+-]+, seed 5", lines.pop("run"))
    assert lines == {
        "state": "done",
        "rows": "20 of 20 saved, 100%",
        "failed": "3: 2 oom, 1 empty_prompt",
        "attempts": "1, 0 died",
        "model": "echo",
        "input": str(directory.with_name("in.jsonl")),
        "output": str(directory.with_name("out.parquet")),
        "saved in": str(directory),
        "hint:": "infer retry out.parquet --codes oom runs failed rows again",
    }
    directory.with_name("out.parquet").unlink()
    assert said(capsys, "out.parquet")["output"].endswith("out.parquet, which is gone")


def test_the_state_itself_and_one_kept_elsewhere_can_be_named(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_flags("in.jsonl", "out.parquet", state_dir="states")
    (elsewhere,) = directory.with_name("states").iterdir()
    for arguments in (["out.parquet", "--state-dir", "states"], [str(elsewhere)], [f"{elsewhere}/"]):
        assert said(capsys, *arguments)["state"] == "done"
    monkeypatch.setenv("INFER_STATE_DIR", "states")
    assert said(capsys, "out.parquet")["state"] == "done"


def test_run_that_died_is_told_with_its_suspects(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with pytest.raises(Crash):
            run_flags("in.jsonl", "out.parquet", CrashingEngine())
    assert said(capsys, "out.parquet")["state"].startswith(f"running: process {os.getpid()} on ")
    leave_lock(directory)
    lines = said(capsys, "out.parquet")
    assert lines["state"].startswith(f"died: process {os.getpid()} on ")
    assert lines["rows"] == "0 of 20 saved, 0%"
    assert lines["attempts"] == "2, 2 died"
    assert lines["suspects"] == "20 rows, to be run alone: 0, 1, 2, 3, 4, 5, 6, 7, ..."
    assert lines["hint:"] == "run the same command again to continue"


def test_run_that_gave_up_says_so(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_flags("in.jsonl", "out.parquet", EchoEngine(max_num_seqs=1), on_error="fail")
    lines = said(capsys, "out.parquet")
    assert lines["state"] == "stopped: more rows failed than may"
    assert lines["hint:"] == "run the same command again, without --max-errors or --on-error fail, to continue"


@pytest.mark.usefixtures("directory")
def test_hint_can_be_pasted_into_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    run_flags("in.jsonl", "my out.parquet", EchoEngine(failures={3: ["oom"] * 9}), state_dir="my states")
    hint = said(capsys, "my out.parquet", "--state-dir", "my states")["hint:"]
    assert hint == "infer retry 'my out.parquet' --codes oom --state-dir 'my states' runs failed rows again"


def test_json_is_one_object(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_flags("in.jsonl", "out.parquet", model="echo")
    capsys.readouterr()
    assert main(["status", "out.parquet", "--json"]) == 0
    status: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status.pop("process").keys() == {"pid", "host", "start"}
    assert len(status.pop("run_id")) == 16
    assert status.pop("last_saved").startswith("20")
    assert status.pop("created").startswith("20")
    assert status == {
        "state": "done",
        "stop_reason": None,
        "rows": 20,
        "rows_saved": 20,
        "rows_failed": 1,
        "failures": {"empty_prompt": 1},
        "rows_per_second": None,
        "seconds_left": None,
        "attempts": 1,
        "deaths": 0,
        "suspects": [],
        "poison": [],
        "seed": 5,
        "model": "echo",
        "inputs": [str(directory.with_name("in.jsonl"))],
        "output": str(directory.with_name("out.parquet")),
        "output_exists": True,
        "state_dir": str(directory),
    }


def test_output_of_which_nothing_is_saved_exits_with_4(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "out.parquet"]) == 4
    assert capsys.readouterr() == (
        "",
        "error: nothing is saved of a run with this output: out.parquet\n"
        "hint: state kept elsewhere is named with --state-dir\n",
    )
    run_flags("in.jsonl", "out.parquet")
    capsys.readouterr()
    assert main(["status", "out.parqet"]) == 4
    assert capsys.readouterr().err.endswith("hint: did you mean 'out.parquet.infer'?\n")
    assert main(["status", "in.jsonl"]) == 4
    assert "hint: infer verify tells whether the output is whole" in capsys.readouterr().err
    assert main(["status", "no/such/out.parquet"]) == 4
    assert main(["status", "-"]) == 2


def test_damaged_state_exits_with_7(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_flags("in.jsonl", "out.parquet")
    text = (directory / "run.json").read_text()
    (directory / "run.json").write_text(text.replace('"seed": 5', '"seed": 6'))
    capsys.readouterr()
    assert main(["status", "out.parquet"]) == 7
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: what is saved is damaged: {directory / 'run.json'}\n")


def test_names_cannot_steer_the_terminal(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[2J.jsonl"
    directory.with_name("in.jsonl").rename(directory.with_name(name))
    run_flags(name, "out.parquet")
    assert said(capsys, "out.parquet")["input"].endswith("/\\x1b[2J.jsonl")
