from __future__ import annotations

from pathlib import Path

import pytest
import typer

from infer.cli.app import app, main
from infer.cli.bench import _NOT_TAKEN
from infer.cli.bench_config import bench_config
from infer.cli.bench_shapes import SHAPES, Shape, Span
from infer.cli.errors import UsageError
from infer.cli.run import names_from_environment


def params_of(name):
    return {param.name: param for param in typer.main.get_command(app).commands[name].params}


def config_of(*arguments):
    command = typer.main.get_command(app).commands["bench"]
    with command.make_context("bench", list(arguments)) as context:
        return bench_config(context.params, names_from_environment(context))


def test_bench_has_the_flags_of_run_that_do_not_concern_an_output():
    run, bench = params_of("run"), params_of("bench")
    assert run.keys() - bench.keys() == set(_NOT_TAKEN)
    for name in run.keys() & bench.keys() - {"inputs", "json"}:
        assert (bench[name].opts, bench[name].help, bench[name].default) == (
            run[name].opts,
            run[name].help,
            run[name].default,
        )


def test_help_page_groups_the_flags_as_run_does(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run", "--help"]) == 0
    run = capsys.readouterr().out
    assert main(["bench", "--help"]) == 0
    head, _, borrowed = capsys.readouterr().out.partition("\nPrompt (without")
    assert head == Path(__file__).with_name("bench_help.txt").read_text(encoding="utf-8")
    engine = borrowed[borrowed.index("\nEngine (") : borrowed.index("\nOther:")]
    assert engine in run


def test_workload_is_a_shape_that_flags_change():
    assert config_of().shape == SHAPES["unique-gen"]
    config = config_of("--workload", "grouped", "--num-rows", "8", "--groups", "2", "--output-tokens", "3:4")
    assert config.shape == Shape(8, Span(15, 40), Span(3, 4), shared_prefix_tokens=600, num_groups=2)
    config = config_of("--shared-prefix-tokens", "9", "--prompt-tokens", "30")
    assert (config.shape.shared_prefix_tokens, config.shape.prompt_tokens) == (9, Span(30, 30))


def test_synthetic_rows_are_greedy_and_have_their_own_lengths():
    job = config_of("--max-num-seqs", "7", "--dtype", "float32").job
    assert (job.prompt.prompt_column, job.row_params, job.sampling["temperature"], job.seed) == ("prompt", True, 0.0, 0)
    assert (job.engine.max_num_seqs, job.engine.dtype) == (7, "float32")
    assert config_of("--temperature", "0.7", "--seed", "4").job.sampling["temperature"] == 0.7
    assert config_of("--seed", "4").seed == 4


def test_own_rows_are_asked_as_run_asks_them():
    config = config_of("a.jsonl", "--messages-column", "m", "--limit", "9")
    assert config.shape is None
    assert (config.job.inputs, config.job.prompt.messages_column, config.job.limit) == (("a.jsonl",), "m", 9)
    assert "temperature" not in config.job.sampling


def test_environment_says_what_it_says_to_run(monkeypatch):
    monkeypatch.setenv("INFER_MAX_NUM_SEQS", "3")
    assert config_of().job.engine.max_num_seqs == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.jsonl", "--num-rows", "3"], "--num-rows is about synthetic rows"),
        (["-"], "are read several times"),
        (["--rounds", "0"], "--rounds must be at least 1: 0"),
        (["--warmup-rows", "-1"], "--warmup-rows must be at least 0: -1"),
        (["--groups", "0"], "--groups must be at least 1: 0"),
        (["--shared-prefix-tokens", "-1"], "--shared-prefix-tokens must not be negative: -1"),
        (["--prompt-tokens", "9:3"], "--prompt-tokens must be at least 1"),
        (["--max-num-seqs", "0"], "max_num_seqs must be at least 1: 0"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        config_of(*arguments)


def test_usage_errors_are_ours():
    with pytest.raises(UsageError):
        config_of("--num-rows", "0")
