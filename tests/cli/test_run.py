"""The flags of `infer run`: that each has a meaning, and the page that shows them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import typer

from infer.cli.app import app, main
from infer.engine.config import EngineConfig
from infer.engine.sampling_params import SamplingParams


def run_flags() -> set[str]:
    command = typer.main.get_command(app).commands["run"]
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


def test_every_sampling_parameter_has_a_flag():
    assert {f"--{each.name.replace('_', '-')}" for each in fields(SamplingParams)} <= run_flags()


def test_every_engine_setting_has_a_flag():
    settings = {f"--{each.name.replace('_', '-')}" for each in fields(EngineConfig)}
    assert settings - run_flags() == {"--memory-utilization"}
    assert "--gpu-memory-utilization" in run_flags()


def test_help_page_groups_the_flags(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run", "--help"]) == 0
    assert capsys.readouterr().out == Path(__file__).with_name("run_help.txt").read_text(encoding="utf-8")
