from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path

import compare
import pytest
from ablations import ABLATIONS, ablations
from contenders import InferContender, PeerContender, RunFailedError, TimedResult
from results import table_lines
from tiny_models import save_model
from workloads import load_tokenizer, write_rows

from infer.cli.bench_shapes import Shape, Span
from infer.engine.config import EngineConfig

INFER = Path(sys.executable).with_name("infer")


@pytest.fixture
def peer(tmp_path):
    """An environment whose Python answers like a peer's script."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\necho a warning\n"
        'echo \'{"rows": 4, "completion_tokens": 12, "seconds": {"load": 9.0, "run": 1000.0}}\'\n'
    )
    python.chmod(0o755)
    return python.parents[1]


def test_ours_and_a_peer_take_turns_and_every_result_is_saved(peer, tmp_path, capsys):
    model = save_model(tmp_path / "model", "llama")
    rows = write_rows(tmp_path, "few", Shape(4, Span(8, 12), Span(3, 3)), load_tokenizer(str(model)), seed=0)
    save = tmp_path / "results.jsonl"
    arguments = [str(rows), "--model", str(model), "--infer", f"{INFER} run --dtype float32", "--dtype", "float32"]
    assert compare.main([*arguments, "--peer", f"vllm={peer}", "--rounds", "1", "--save", str(save)]) == 0
    results = [json.loads(line) for line in save.read_text().splitlines()]
    assert [(each["workload"], each["name"], each["round"]) for each in results] == [
        ("few", "vllm", 1),
        ("few", "infer", 1),
    ]
    assert [(each["rows"], each["completion_tokens"]) for each in results] == [(4, 12), (4, 12)]
    assert results[1]["summary"]["rows_failed"] == 0
    limits, header, first, second = capsys.readouterr().out.splitlines()
    assert limits.startswith("limits: ")
    assert header.split()[:2] == ["few", "seconds"]
    assert (first.split()[0], first.split()[1]) == ("vllm", "1000.00")
    assert second.split()[0] == "infer"
    assert float(second.split()[5]) > 1


def test_table_has_medians_and_ratios_to_the_best_peer():
    def runs(*seconds):
        return [TimedResult(100, 1000, each, 1.0, each / 10) for each in seconds]

    results = {"vllm": runs(10, 30, 20), "openvino": runs(40), "infer": runs(16, 15, 99)}
    assert list(table_lines("grouped", results, {"vllm", "openvino"}, limit_seconds=8.0)) == [
        "grouped                    seconds    rows/s  tokens/s  of limit x best peer  other cpu",
        "  vllm                       20.00      5.00        50       40%                   3.0s",
        "  openvino                   40.00      2.50        25       20%                   4.0s",
        "  infer                      16.00      6.25        62       50%        1.25       9.9s",
    ]


def test_without_a_peer_the_first_of_ours_is_what_others_are_compared_with():
    results = {"infer": [TimedResult(1, 1, 2.0, 0, 0)], "no cache": [TimedResult(1, 1, 4.0, 0, 0)]}
    lines = list(table_lines("w", results, set(), 1.0))
    assert lines[0].split()[6:8] == ["x", "first"]
    assert [line.split()[-2] for line in lines[1:]] == ["1.00", "0.50"]


def test_command_may_have_a_name():
    assert InferContender.parse("infer run --max-num-seqs=4") == InferContender("infer", "infer run --max-num-seqs=4")
    assert InferContender.parse("old=v/bin/infer run") == InferContender("old", "v/bin/infer run")


def test_peer_that_is_unknown_is_refused():
    with pytest.raises(RunFailedError, match="one of vllm, openvino, openvino-int8: llama=x"):
        PeerContender.parse("llama=x")


def test_contender_that_fails_says_why(tmp_path):
    with pytest.raises(RunFailedError, match="no such file"):
        InferContender.parse(f"{INFER} run").run(tmp_path / "none.jsonl", "m")


def test_every_optimisation_that_is_a_switch_is_ablated():
    switches = {each.name for each in fields(EngineConfig) if each.default is True}
    flags = {flags[0].removeprefix("--no-").replace("-", "_") for flags in ABLATIONS.values()}
    assert switches <= flags
    page = InferContender.parse(f"{INFER} run").help_page()
    assert {name for name, flags in ABLATIONS.items() if flags[0].startswith("--no-")} <= ablations(page).keys()


def test_optimisation_that_a_version_does_not_know_is_left_out():
    assert ablations("--fuse-kernels / --no-fuse-kernels  layers\n--speculative NAME") == {
        "fused kernels": ("--no-fuse-kernels",),
        "speculation": ("--speculative", "off"),
    }
