"""`infer verify`: what it prints, and what it exits with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from echo_job import run_flags
from outputs import changed, write_input, write_output

from infer.cli.app import main
from infer.io.finding import HINTS, Check

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_input(tmp_path / "in.jsonl", 100)


def test_good_output_exits_with_0(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_output(source.with_name("out.parquet"), source)
    assert main(["verify", "out.parquet"]) == 0
    assert capsys.readouterr() == (
        "out.parquet: 100 rows in 1 file\n"
        "digest    ok\n"
        "record    ok\n"
        "pages     ok\n"
        "columns   ok\n"
        "rows      ok\n"
        "outcomes  ok\n"
        "input     not checked: no input was given\n",
        "",
    )
    assert main(["verify", "out.parquet", "--input", "in.jsonl"]) == 0
    assert capsys.readouterr().out.endswith("outcomes  ok\ninput     ok\n")


def test_what_is_wrong_is_said_with_a_hint_and_exits_with_9(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = source.with_name("out.parquet")
    write_output(path, source, change=lambda records: changed(records, 4, response=None))
    source.write_bytes(source.read_bytes().replace(b'"n":0', b'"n":1'))
    assert main(["verify", "out.parquet", "--input", "in.jsonl"]) == 9
    out, err = capsys.readouterr()
    assert out.splitlines()[-4:] == [
        "outcomes  failed: out.parquet: row 4: neither response nor error",
        f"          hint: {HINTS[Check.OUTCOMES]}",
        "input     failed: out.parquet: row 0: column n: not the value of the input",
        f"          hint: {HINTS[Check.INPUT]}",
    ]
    assert err == ""


def test_damaged_output_exits_with_9_and_nothing_else_is_looked_at(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = source.with_name("out.parquet")
    write_output(path, source)
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["verify", "out.parquet"]) == 9
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == (
        "digest    failed: out.parquet: the file does not end as Parquet does: it was cut off, or something was added"
    )
    assert lines[3:] == [
        *(f"{name:10}not checked: the output could not be read to its end"
          for name in ("record", "pages", "columns", "rows", "outcomes")),
        "input     not checked: no input was given",
    ]  # fmt: skip


def test_json_is_one_object(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = source.with_name("out.jsonl")
    write_output(path, source, change=lambda records: changed(records, 4, _row=7))
    assert main(["verify", "out.jsonl", "--json"]) == 9
    assert json.loads(capsys.readouterr().out) == {
        "output": "out.jsonl",
        "files": 1,
        "rows": 100,
        "ok": False,
        "checked": ["pages", "columns", "rows", "outcomes"],
        "unchecked": {
            "digest": "JSONL carries none, and no state of the run is there",
            "record": "JSONL carries none, and no state of the run is there",
            "input": "no input was given",
        },
        "findings": [
            {
                "check": "rows",
                "message": "_row is 7, expected 4",
                "file": "out.jsonl",
                "row": 4,
                "column": None,
                "rows": 1,
                "hint": HINTS[Check.ROWS],
            }
        ],
        "exit_code": 9,
    }


def test_output_that_is_not_there_exits_with_4(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "none.parquet"]) == 4
    assert capsys.readouterr() == ("", "error: no such output: none.parquet\n")
    write_output(source.with_name("out.parquet"), source)
    assert main(["verify", "out.parquet", "--input", "none.jsonl"]) == 4


def test_what_comes_from_data_cannot_steer_the_terminal(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_output(
        source.with_name("out.jsonl"), source, change=lambda records: changed(records, 4, finish_reason="\x1b[2J\n")
    )
    assert main(["verify", "out.jsonl"]) == 9
    assert "row 4: finish_reason is \\x1b[2J\\n\n" in capsys.readouterr().out


def saved_output(source: Path, capsys: pytest.CaptureFixture[str], **flags: str) -> Path:
    source.with_name("texts.jsonl").write_text('{"text": "a"}\n{"text": ""}\n{"text": "b"}\n')
    run_flags("texts.jsonl", "out.jsonl", **flags)
    capsys.readouterr()
    return source.with_name("out.jsonl")


def test_state_of_the_run_knows_the_digest_of_jsonl(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved_output(source, capsys)
    assert main(["verify", "out.jsonl"]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == ["digest    ok", "record    ok"]
    # A change that leaves nothing else to be seen.
    path.write_bytes(path.read_bytes().replace(b'"text":"b"', b'"text":"c"'))
    assert main(["verify", "out.jsonl"]) == 9
    assert "digest    failed: out.jsonl: the bytes of the file have changed: " in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["verify", "out.jsonl"]) == 9
    assert "digest    failed: out.jsonl: " in capsys.readouterr().out


def test_state_may_be_kept_elsewhere(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_output(source, capsys, state_dir="states")
    assert main(["verify", "out.jsonl"]) == 0
    assert "digest    not checked: JSONL carries none" in capsys.readouterr().out
    assert main(["verify", "out.jsonl", "--state-dir", "states"]) == 0
    assert "digest    ok\n" in capsys.readouterr().out


def test_state_that_is_damaged_is_not_used_and_that_is_said(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved_output(source, capsys)
    state = path.with_name("out.jsonl.infer") / "run.json"
    state.write_text(state.read_text().replace('"seed": 5', '"seed": 6'))
    assert main(["verify", "out.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert "digest    not checked: " in out
    assert err == f"what is saved of the run is not used: what is saved is damaged: {state}\n"


def test_output_of_another_run_is_told_from_what_is_saved(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.with_name("texts.jsonl").write_text('{"text": "a"}\n')
    run_flags("texts.jsonl", "out.parquet")
    run_flags("texts.jsonl", "other.parquet")
    source.with_name("other.parquet").replace(source.with_name("out.parquet"))
    capsys.readouterr()
    assert main(["verify", "out.parquet"]) == 9
    assert "digest    failed: out.parquet: " in capsys.readouterr().out


def test_run_that_has_not_ended_says_nothing_of_the_output(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved_output(source, capsys)
    run_flags("texts.jsonl", "out.jsonl", overwrite=True, on_error="fail", max_num_seqs=1)
    assert path.with_name("out.jsonl.infer").is_dir()
    capsys.readouterr()
    assert main(["verify", "out.jsonl"]) == 0
    assert "digest    not checked: " in capsys.readouterr().out
