from __future__ import annotations

import json

import pytest

from infer.cli.app import main
from infer.engine import doctor
from infer.engine.finding import Finding, State


@pytest.fixture
def findings(monkeypatch):
    found = [
        Finding("memory", State.OK, "20 GiB are left", figures={"available_bytes": 20}),
        Finding("threads", State.NOTE, "8 on 4 cores", "set OMP_NUM_THREADS=4"),
    ]
    monkeypatch.setattr(doctor, "_LOOKS", (("all", lambda: iter(found)),))
    return found


def test_each_finding_has_a_line_and_its_hint_another(findings, capsys):
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == (
        "ok     memory           20 GiB are left\n"
        "note   threads          8 on 4 cores\n"
        "                        hint: set OMP_NUM_THREADS=4\n"
    )


def test_json_has_the_figures(findings, capsys):
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "findings": [
            {
                "subject": "memory",
                "state": "ok",
                "text": "20 GiB are left",
                "hint": "",
                "figures": {"available_bytes": 20},
            },
            {
                "subject": "threads",
                "state": "note",
                "text": "8 on 4 cores",
                "hint": "set OMP_NUM_THREADS=4",
                "figures": {},
            },
        ],
        "exit_code": 0,
    }


def test_machine_that_can_run_nothing_exits_with_8(findings, capsys):
    findings.append(Finding("libraries", State.BROKEN, "torch cannot be imported"))
    assert main(["doctor"]) == 8
    assert "broken libraries        torch cannot be imported\n" in capsys.readouterr().out
