"""`infer bench` on a tiny model, as a whole."""

from __future__ import annotations

import json
import os
import signal

import pytest
from echo_engine import EchoEngine
from job_flags import config_of
from tiny_models import save_model

from infer.cli.app import main
from infer.cli.bench_job import Rounds
from infer.cli.errors import InterruptError, StoppedEarlyError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("model") / "llama", "llama"))


@pytest.fixture(scope="module")
def arguments(model):
    return ["bench", "--model", model, "--dtype", "float32", "--rounds", "2", "--warmup-rows", "2"]


def test_synthetic_rows_are_measured_and_the_figures_add_up(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shape = ["--num-rows", "6", "--prompt-tokens", "20:30", "--output-tokens", "5", "--shared-prefix-tokens", "40"]
    assert main([*arguments, *shape, "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    summary = result["summary"]

    assert (summary["rows"], summary["rows_failed"], summary["completion_tokens"]) == (6, 0, 30)
    assert summary["cached_tokens"] > 0
    assert sum(result["phases"].values()) == pytest.approx(result["seconds"], abs=1e-3)
    assert sum(result["losses"].values()) == pytest.approx(result["seconds"] - result["limit_seconds"], abs=1e-3)
    assert len(result["rounds_seconds"]) == 2
    assert result["seconds"] == min(result["rounds_seconds"])
    assert 0 < result["work"]["tokens"] <= result["work"]["tokens_computed"]
    assert {each["work"] for each in result["operators"]} == {"gemm", "attention", "other"}
    assert 0 < result["host_share"] < 1
    assert "warm-up: " in captured.err
    assert list(tmp_path.iterdir()) == []


def test_own_rows_are_measured_and_said_in_words(arguments, capsys, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"q": "The quick brown fox"}\n{"q": ""}\n{"q": "A kettle"}\n')
    code = main([*arguments, str(source), "--prompt", "{q}", "--max-tokens", "4", "--ignore-eos", "--temperature", "0"])
    out = capsys.readouterr().out
    assert code == 3
    assert "failed     1 row\n" in out
    for begin in (
        "run        ",
        "gemm     ",
        "attention ",
        "host work, outside kernels: ",
        "limit      ",
        "where the ",
    ):
        assert f"\n{begin}" in out
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_input_that_cannot_be_read_is_said_before_the_model_is_loaded(capsys, tmp_path):
    assert main(["bench", str(tmp_path / "none.jsonl"), "--model", str(tmp_path / "none")]) == 4
    assert "no such file" in capsys.readouterr().err


class StoppedEngine(EchoEngine):
    """Somebody sends the process a signal in the first step."""

    def __init__(self, number):
        super().__init__()
        self._number = number

    def forget_cache(self):
        pass

    def step(self):
        os.kill(os.getpid(), self._number)
        return super().step()


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, InterruptError), (signal.SIGTERM, StoppedEarlyError)])
def test_round_that_is_stopped_stops_the_measurement(tmp_path, number, error):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "The quick brown fox"}\n')
    job = config_of(str(source), "-o", str(tmp_path / "out.parquet"), "--seed", "0")
    said = []
    with pytest.raises(error, match="round-1 was stopped"):
        Rounds(job, StoppedEngine(number), {"model": "echo"}, said.append).run("round-1")
    assert said == []
