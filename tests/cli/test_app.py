"""The `infer` command as it is typed: exit codes, what stands on which stream, and what is not imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tiny_models import save_model

from infer.cli.app import main

INFER = Path(sys.executable).with_name("infer")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("model") / "llama", "llama"))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "The quick brown fox"}\n{"text": ""}\n{"text": "A review of a kettle"}\n')
    return str(path)


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out == (
        "Usage: infer [OPTIONS] COMMAND [ARGS]...\n"
        "\n"
        "  Run a language model over every row of a data set.\n"
        "\n"
        "Options:\n"
        "  --version  Show the version and exit.\n"
        "  --help     Show this message and exit.\n"
        "\n"
        "Commands:\n"
        "  run      Run a model over every row of INPUT.\n"
        "  status   Show how far a run is, from what it has saved; it may be running.\n"
        "  retry    Run failed rows again, and publish the output anew.\n"
        "  verify   Check that an output is whole, and what its run has written.\n"
        "  bench    Measure where the time of a run goes, and what is possible here.\n"
        "  doctor   Show what this machine has for a run, and what is missing.\n"
        "  version  Show the versions to name in a bug report.\n"
        "  models   List the models that can be named, or fetch one.\n"
    )
    assert captured.err == ""
    assert main([]) == 0
    assert capsys.readouterr() == captured


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"infer {version('infer-batch')}\n"
    assert main(["version", "--json"]) == 0
    versions = json.loads(capsys.readouterr().out)
    assert versions["infer"] == version("infer-batch")
    assert versions["torch"] == version("torch")


def test_wrong_value_of_a_variable_is_shown_with_its_name(monkeypatch, capsys):
    monkeypatch.setenv("INFER_MAX_TOKENS", "abc")
    assert main(["run", "in.jsonl"]) == 2
    assert ", INFER_MAX_TOKENS is 'abc'\n" in capsys.readouterr().err
    assert main(["run", "in.jsonl", "--max-tokens", "xyz"]) == 2
    assert "INFER_MAX_TOKENS" not in capsys.readouterr().err


def test_every_decision_is_told_and_traced_where_that_is_asked_for(model, source, tmp_path):
    command = [INFER, "run", source, "--model", model, "--raw", "--max-tokens", "3", "--ignore-eos", "--seed", "1"]
    command += ["-o", "out.jsonl", "--trace", "steps.parquet", "--allow-errors"]
    environment = {**os.environ, "INFER_LOG_LEVEL": "debug"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    lines = [line.split("  ", 1)[1] for line in done.stderr.splitlines() if "  step " in line]
    assert [line.split(";")[0] for line in lines] == ["step 1", "step 2", "step 3"]
    assert "one each 0,2" in lines[1]
    steps = pq.read_table(tmp_path / "steps.parquet").to_pylist()
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert [row["row"] for row in steps[0]["scheduled"]] == [0, 2]
    assert steps[0]["seconds"] < steps[2]["seconds"]
    assert (steps[1]["decode_tokens"], steps[1]["prefill_tokens"]) == (2, 0)


def test_log_level_that_is_none_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("INFER_LOG_LEVEL", "loud")
    assert main(["version"]) == 2
    assert capsys.readouterr().err == "error: INFER_LOG_LEVEL must be debug, info, warning or error: loud\n"


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["run", "--help"],
        ["models", "--help"],
        ["verify", "--help"],
        ["status", "--help"],
        ["retry", "--help"],
        ["bench", "--help"],
        ["doctor", "--help"],
        ["--version"],
    ],
)
def test_help_imports_nothing_heavy(command):
    script = (
        "import sys; from infer.cli.app import main; main(sys.argv[1:]); "
        "print({'numba', 'pyarrow', 'torch', 'transformers'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["rum"], "error: no such command 'rum'; did you mean 'run'?\nhint: infer --help\n"),
        (["run"], "error: missing argument 'INPUT'\nhint: infer run --help\n"),
        (
            ["run", "a.jsonl", "--overwritte"],
            "error: no such option: --overwritte (Possible options: --overwrite)\nhint: infer run --help\n",
        ),
        (
            ["run", "a.jsonl", "--scheduling-policy", "lottery"],
            "error: invalid value for '--scheduling-policy': 'lottery' is not one of 'fcfs', 'priority'\n"
            "hint: infer run --help\n",
        ),
        (
            ["run", "a.jsonl", "--temperature", "-1"],
            "error: --temperature must be a finite number, at least 0: -1.0\n",
        ),
    ],
)
def test_usage_error_is_said_in_a_line_and_exits_with_2(capsys, command, message):
    assert main(command) == 2
    assert capsys.readouterr() == ("", message)


def test_missing_input_exits_with_4(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n')
    assert main(["run", "dat.jsonl"]) == 4
    assert capsys.readouterr() == ("", "error: no such file: dat.jsonl\nhint: did you mean 'data.jsonl'?\n")


@pytest.mark.parametrize("text", ["", "\n\n", "{}\n"])
def test_input_without_any_column_exits_with_4(capsys, tmp_path, text):
    path = tmp_path / "in.jsonl"
    path.write_text(text)
    assert main(["run", str(path)]) == 4
    assert capsys.readouterr().err == (
        f"error: the input has no columns: {path}\nhint: it is empty, or its rows have no fields\n"
    )


def test_input_without_any_good_line_exits_with_4_and_shows_the_first(capsys, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("\n[1]\nnot json\n")
    assert main(["run", str(path)]) == 4
    assert capsys.readouterr().err == (
        "error: no line is a JSON object with a field, the first bad one is "
        f"{path}:2: expected an object, found a list\n"
        "hint: JSONL has one object a line: jq -c '.[]' makes that of a list, jq -c . of objects over several lines\n"
    )


def test_output_that_exists_exits_with_5(capsys, source, tmp_path):
    output = tmp_path / "out.jsonl"
    output.write_text("old")
    assert main(["run", source, "-o", str(output)]) == 5
    assert capsys.readouterr() == ("", f"error: the output exists: {output}\nhint: replace it with --overwrite\n")


def test_model_that_is_not_there_exits_with_8(capsys, source, tmp_path):
    assert main(["run", source, "--model", str(tmp_path / "none")]) == 8
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_run_prints_one_json_object_and_publishes_the_rows(capsys, source, model, tmp_path):
    code = main(["run", source, "--model", model, "--dtype", "float32", "--max-tokens", "5", "--ignore-eos", "--json"])
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    rows = pq.read_table(tmp_path / "in.infer.parquet").to_pylist()

    assert code == summary["exit_code"] == 3
    assert [(row["text"], row["finish_reason"], row["completion_tokens"], row["error_code"]) for row in rows] == [
        ("The quick brown fox", "length", 5, None),
        ("", "error", None, "empty_prompt"),
        ("A review of a kettle", "length", 5, None),
    ]
    assert list(summary) == [
        *("rows", "rows_failed", "rows_resumed", "prompt_tokens", "completion_tokens", "cached_tokens"),
        *("preemptions", "tokens_wasted", "seconds", "output", "exit_code", "swaps", "cached_tokens_by_tier"),
        *("rows_deduplicated", "phases"),
    ]
    assert (summary["rows"], summary["rows_failed"], summary["completion_tokens"]) == (3, 1, 10)
    assert summary["output"] == str(tmp_path / "in.infer.parquet")
    assert "sampling: greedy, max_tokens 5, ignore_eos True, seed " in captured.err


def test_run_with_the_same_seed_gives_the_same_answers(source, model, tmp_path):
    arguments = ["run", source, "--model", model, "--dtype", "float32", "--max-tokens", "8", "--temperature", "1"]
    answers = []
    for number, seed in enumerate((1, 1, 2)):
        output = tmp_path / f"{number}.parquet"
        assert main([*arguments, "--seed", str(seed), "--allow-errors", "-o", str(output)]) == 0
        answers.append(pq.read_table(output)["response"].to_pylist())
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.slow
def test_ctrl_c_ends_a_run_with_130_and_leaves_no_file(model, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "The quick brown fox"}\n' * 20_000)
    command = [INFER, "run", source, "--model", model, "--max-tokens", "400", "--ignore-eos"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("kv cache: "):
                process.send_signal(signal.SIGINT)
                break
        last_lines = process.stderr.read().splitlines()[-2:]
    assert process.returncode == 130
    assert last_lines == ["interrupted, rows saved: 0", "hint: run the same command again to continue"]
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
