"""A whole job with an engine that needs no model: rows in, rows out, and what is said meanwhile."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from echo_engine import EchoEngine, identify_echo
from job_flags import run_flags

from infer.cli.config import JobConfig
from infer.cli.error_limit import parse_error_limit
from infer.cli.errors import StandardOutputError, UsageError
from infer.cli.job import run_job
from infer.cli.prompt import PromptSpec
from infer.engine.config import EngineConfig
from infer.engine.errors import ConfigError, ModelError
from infer.io.errors import InputError, OutputExistsError, OutputNameError

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.cli.report import RunSummary

SUPPORT = Path(__file__).parents[1] / "support"


def write_jsonl(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def run(source: str, output: Path, stand_in: EchoEngine | None = None, **settings: Any) -> RunSummary:
    settings = {"prompt": PromptSpec(prompt_column="text"), "seed": 0, **settings}
    config = JobConfig(inputs=(source,), output=str(output), **settings)
    return run_job(config, lambda _config, _say: stand_in or EchoEngine(), identify_echo)


def no_engine(*_: object) -> EchoEngine:
    pytest.fail("the model was loaded")


def test_rows_and_answers_are_published_in_input_order(tmp_path):
    texts = [f"row {number}" + " on and on" * (number % 5) for number in range(300)]
    pq.write_table(pa.table({"id": range(300), "text": texts}), tmp_path / "in.parquet")

    summary = run(str(tmp_path / "in.parquet"), tmp_path / "out.parquet")

    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == [
        *("id", "text", "response", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"),
        *("error_code", "error", "_row"),
    ]
    assert table["id"].to_pylist() == table["_row"].to_pylist() == list(range(300))
    assert table["response"].to_pylist() == table["text"].to_pylist() == texts
    assert set(table["finish_reason"].to_pylist()) == {"stop"}
    assert (summary.rows, summary.rows_failed, summary.exit_code) == (300, 0, 0)
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        assert getattr(summary, name) == sum(table[name].to_pylist())


def test_bad_rows_are_rows_of_the_output(tmp_path):
    source = write_jsonl(
        tmp_path / "in.jsonl",
        {"text": "a"},
        {"text": None},
        "{broken",
        {"text": ""},
        {"text": "too long " * 600},
        {"text": "b", "max_tokens": -1},
        {"text": "c"},
    )

    summary = run(source, tmp_path / "out.jsonl", row_params=True, keep=("text",))

    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["_row"], row["response"], row["error_code"]) for row in rows] == [
        (0, "a", None),
        (1, None, "invalid_input"),
        (2, None, "invalid_input"),
        (3, None, "empty_prompt"),
        (4, None, "prompt_too_long"),
        (5, None, "invalid_input"),
        (6, "c", None),
    ]
    assert rows[1]["error"] == "column text is null"
    assert rows[2]["error"].startswith(f"{source}:3: ")
    assert rows[5]["error"] == "max_tokens must be a whole number, at least 1: -1"
    assert [row["text"] for row in rows[:3]] == ["a", None, None]
    assert (summary.rows, summary.rows_failed, summary.exit_code) == (7, 5, 3)


def test_failed_rows_leave_the_exit_code_where_that_is_allowed(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": ""}, {"text": ""})
    summary = run(source, tmp_path / "out.jsonl", allow_errors=True)
    assert (summary.rows, summary.rows_failed, summary.exit_code) == (2, 2, 0)


def test_row_has_its_own_sampling_parameters_and_its_own_seed(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "abcdef", "max_tokens": 2}, {"text": "abcdef"})
    requests = []

    class NotingEngine(EchoEngine):
        def add_request(self, request: Any) -> None:
            requests.append(request)
            super().add_request(request)

    run(source, tmp_path / "out.jsonl", NotingEngine(), row_params=True, sampling={"max_tokens": 3, "top_k": 7})

    requests.sort(key=lambda request: request.request_id)
    assert [request.sampling_params.max_tokens for request in requests] == [2, 3]
    assert [request.sampling_params.top_k for request in requests] == [7, 7]
    assert requests[0].prompt_token_ids == requests[1].prompt_token_ids
    assert requests[0].seed != requests[1].seed


def test_rows_say_which_goes_first(tmp_path):
    source = write_jsonl(
        tmp_path / "in.jsonl", {"text": "a", "priority": 2}, {"text": "b"}, {"text": "c", "priority": "x"}
    )
    requests = []

    class NotingEngine(EchoEngine):
        def add_request(self, request: Any) -> None:
            requests.append(request)
            super().add_request(request)

    engine = EngineConfig(scheduling_policy="priority")
    summary = run(source, tmp_path / "out.jsonl", NotingEngine(), engine=engine, keep=("text",))
    assert [(request.request_id, request.priority) for request in requests] == [(1, 0), (0, 2)]
    assert summary.rows_failed == 1


@pytest.mark.parametrize(
    ("trace", "error_class"),
    [("out.jsonl", UsageError), ("in.jsonl", OutputNameError), ("data.parquet", OutputExistsError)],
)
def test_trace_takes_no_name_that_is_in_use(tmp_path, trace, error_class):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "data.parquet")
    source = str(tmp_path / "data.parquet")
    before = (tmp_path / "data.parquet").read_bytes()
    with pytest.raises(error_class):
        run(source, tmp_path / "out.jsonl", trace=str(tmp_path / trace), overwrite=True)
    assert (tmp_path / "data.parquet").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.parquet"]


def test_priorities_need_their_column(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "a"})
    with pytest.raises(UsageError, match="needs a column of this name: priority"):
        run(source, tmp_path / "out.jsonl", engine=EngineConfig(scheduling_policy="priority"))


def test_parameters_that_the_model_refuses_stop_the_job_before_its_rows(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "a"})

    class SmallVocabulary(EchoEngine):
        def check_sampling_params(self, params: Any) -> None:
            raise ConfigError(f"allowed_token_ids must be below the vocabulary size, 10: {params.allowed_token_ids[0]}")

    with pytest.raises(ConfigError, match="vocabulary size, 10: 11"):
        run(source, tmp_path / "out.jsonl", SmallVocabulary(), sampling={"allowed_token_ids": (11,)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_logprobs_are_a_column_where_they_are_asked_for(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "ab"}, {"text": ""})
    run(source, tmp_path / "out.parquet", sampling={"logprobs": 1})
    logprobs = pq.read_table(tmp_path / "out.parquet")["logprobs"].to_pylist()
    assert "".join(position["token"] for position in logprobs[0]) == "ab"
    assert [len(position["top"]) for position in logprobs[0]] == [1] * len(logprobs[0])
    assert logprobs[1] is None


def test_prefix_and_keep_name_the_columns(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "a", "response": "old", "id": 1})
    run(source, tmp_path / "out.jsonl", prefix="llm_", keep=("id", "response"), limit=1)
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert list(row)[:3] == ["id", "response", "llm_response"]
    assert (row["response"], row["llm_response"]) == ("old", "a")


def test_limit_ends_the_input(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", *[{"text": "a"}] * 5)
    engine = EchoEngine()
    assert run(source, tmp_path / "out.jsonl", engine, limit=3).rows == 3
    num_tokens = len(engine.tokenizer.encode("a", add_special_tokens=False))
    assert engine.fitted == [(3, num_tokens + 512)]


def test_input_without_rows_gives_an_output_without_rows(tmp_path):
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "in.parquet")
    summary = run(str(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    assert (summary.rows, summary.exit_code) == (0, 0)
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 0


def test_run_says_what_it_does_on_standard_error(tmp_path, capsys):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "a"}, {"text": ""})
    run(source, tmp_path / "out.jsonl", seed=7, sampling={"max_tokens": 4})
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line) for line in captured.err.splitlines()]
    assert lines[:3] == ["model echo", "sampling: greedy, max_tokens 4, seed 7", "kv cache: none"]
    assert lines[3].startswith("2/2 rows  100%  2 saved  1 failed  ")
    assert lines[4].startswith("done  2 rows in ")
    assert "  1 empty_prompt  row 1: the prompt is empty" in lines


@pytest.mark.parametrize(
    ("settings", "error_class", "message"),
    [
        ({"prompt": PromptSpec(prompt_column="txt")}, InputError, "no such column: txt"),
        ({"prompt": PromptSpec(prompt="{txt}")}, InputError, "no such column: txt"),
        ({"keep": ("idd",)}, InputError, "no such column: idd"),
        ({"row_params": True}, UsageError, "--row-params finds no column named like a sampling parameter"),
        ({"output": "out.xlsx"}, OutputNameError, "unknown output format: out.xlsx"),
        ({"inputs": ("missing.jsonl",)}, InputError, "no such file: missing.jsonl"),
    ],
)
def test_bad_job_stops_before_the_model_is_loaded(tmp_path, settings, error_class, message):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "a", "id": 1})
    defaults = {"inputs": (source,), "output": str(tmp_path / "out.jsonl"), "prompt": PromptSpec(prompt_column="text")}
    with pytest.raises(error_class) as caught:
        run_job(JobConfig(seed=0, **{**defaults, **settings}), no_engine, identify_echo)
    assert str(caught.value) == message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_output_that_exists_is_refused_and_left_alone(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "a"})
    (tmp_path / "out.jsonl").write_text("old")
    config = JobConfig((source,), str(tmp_path / "out.jsonl"), seed=0, prompt=PromptSpec(prompt_column="text"))
    with pytest.raises(OutputExistsError):
        run_job(config, no_engine, identify_echo)
    assert (tmp_path / "out.jsonl").read_text() == "old"


def failing(error: Callable[[], Exception]) -> Callable[..., EchoEngine]:
    def load(*_: object) -> EchoEngine:
        raise error()

    return load


@pytest.mark.parametrize("error", [ModelError("no such model"), ConfigError("no memory"), RuntimeError("a bug")])
def test_failure_to_load_leaves_nothing_behind(tmp_path, error):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "a"})
    config = JobConfig((source,), str(tmp_path / "out.jsonl"), seed=0, prompt=PromptSpec(prompt_column="text"))
    with pytest.raises(type(error)) as caught:
        run_job(config, failing(lambda: error), identify_echo)
    assert caught.value is error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 75, "stopped by SIGTERM")],
)
def test_stop_keeps_what_is_done_and_the_next_run_goes_on(tmp_path, capsys, number, code, said):
    source = write_jsonl(tmp_path / "in.jsonl", *[{"text": f"a{number}"} for number in range(20)])
    output = tmp_path / "out.jsonl"

    class InterruptedEngine(EchoEngine):
        def step(self) -> list[Any]:
            if self._num_finished >= 8:
                os.kill(os.getpid(), number)
            return super().step()

    stopped = run(source, output, InterruptedEngine())
    assert stopped.rows in (8, 12)
    assert (stopped.exit_code, stopped.output) == (code, None)
    message, hint = capsys.readouterr().err.splitlines()[-2:]
    assert message == f"{said}, rows saved: {stopped.rows}"
    assert hint == "hint: run the same command again to continue"
    assert not output.exists()

    engine = EchoEngine()
    done = run(source, output, engine)
    assert (done.rows, done.rows_resumed, done.exit_code) == (20, stopped.rows, 0)
    assert engine._num_finished == 20 - stopped.rows
    assert f"resuming: {stopped.rows} of 20 rows saved" in capsys.readouterr().err.splitlines()
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["_row"], row["response"]) for row in rows] == [(number, f"a{number}") for number in range(20)]


def test_rows_to_standard_output_come_in_order_and_nothing_is_saved(tmp_path, capsysbinary, monkeypatch):
    # Short answers end first, long ones hold up those behind them.
    texts = ["x" * (1 + 7 * number % 40) for number in range(50)]
    source = write_jsonl(tmp_path / "in.jsonl", *[{"text": text} for text in texts], "{oops")
    monkeypatch.chdir(tmp_path)
    summary = run(source, "-")
    assert (summary.rows, summary.rows_failed, summary.output, summary.exit_code) == (51, 1, "-", 3)
    captured = capsysbinary.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [row["_row"] for row in rows] == list(range(51))
    assert [row["response"] for row in rows] == [*texts, None]
    assert captured.err.splitlines()[0] == (
        b"rows go to standard output: nothing is saved, a run that is stopped begins again at the first row"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_rows_to_standard_output_are_read_ahead_only_so_far(tmp_path, capsysbinary):
    """The first row is long: all behind it wait, in memory, until it is done."""
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "x" * 2000}, *[{"text": "a"}] * 5000)
    asked: list[int] = []

    class NotingEngine(EchoEngine):
        def add_request(self, request: Any) -> None:
            asked.append(request.request_id)
            super().add_request(request)

        def step(self) -> list[Any]:
            completions = super().step()
            if 0 in {each.request_id for each in completions}:
                most.append(max(asked))
            return completions

    most: list[int] = []
    engine = NotingEngine(max_num_seqs=512, max_model_len=5000)
    run(source, "-", engine, engine=EngineConfig(max_num_seqs=512), sampling={"max_tokens": 2000})
    assert capsysbinary.readouterr().out.count(b"\n") == 5001
    assert len(most) == 1
    assert most[0] < 1024 + 64


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_of_a_run_to_standard_output_says_that_it_begins_again(tmp_path, capsysbinary, number):
    source = write_jsonl(tmp_path / "in.jsonl", *[{"text": f"a{number}"} for number in range(20)])

    class InterruptedEngine(EchoEngine):
        def step(self) -> list[Any]:
            if self._num_finished >= 8:
                os.kill(os.getpid(), number)
            return super().step()

    stopped = run(source, "-", InterruptedEngine())
    assert (stopped.exit_code, stopped.output) == (130 if number == signal.SIGINT else 75, None)
    captured = capsysbinary.readouterr()
    said, hint = captured.err.decode().splitlines()[-2:]
    assert said == ("interrupted" if number == signal.SIGINT else "stopped by SIGTERM")
    assert hint == "hint: nothing is saved, a run that is stopped begins again at the first row"
    assert captured.out.count(b"\n") == stopped.rows


def test_run_to_standard_output_that_gives_up_says_so(tmp_path, capsysbinary):
    source = write_jsonl(tmp_path / "in.jsonl", *[{"text": ""}] * 3, *[{"text": "a"}] * 5000)
    limit = parse_error_limit("record", "2")
    summary = run(source, "-", error_limit=limit, allow_errors=True)
    assert (summary.exit_code, summary.output) == (3, None)
    captured = capsysbinary.readouterr()
    assert captured.err.decode().splitlines()[-2:] == [
        "3 rows failed, --max-errors 2 allows 2",
        "hint: run again without it; with -o NAME, what is done is saved",
    ]
    assert captured.out.count(b"\n") < 5003


PIPED_JOB = """
import sys
from echo_engine import EchoEngine, identify_echo
from infer.cli.config import JobConfig
from infer.cli.errors import error_message, exit_code
from infer.cli.job import run_job
from infer.cli.prompt import PromptSpec
from infer.cli.stdout import checked_stdout
config = JobConfig((sys.argv[1],), "-", seed=0, prompt=PromptSpec(prompt_column="text"))
try:
    with checked_stdout():
        run_job(config, lambda *_: EchoEngine(max_num_seqs=64), identify_echo)
except Exception as error:
    print(error_message(error), file=sys.stderr)
    sys.exit(exit_code(error))
"""


def test_run_whose_reader_has_gone_ends(tmp_path):
    source = write_jsonl(tmp_path / "in.jsonl", *[{"text": "a" * 100}] * 20_000)
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", PIPED_JOB, source]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline())["_row"] == 0
        process.stdout.close()
        errors = process.stderr.read().decode()
    assert process.returncode == 7
    assert errors.endswith("error: nobody reads standard output any more\n")


def test_rows_for_a_standard_output_that_is_closed_are_refused(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "in.jsonl", {"text": "a"})
    # As Python has it where the process was started without one.
    monkeypatch.setattr(sys, "stdout", None)
    config = JobConfig((source,), "-", seed=0, prompt=PromptSpec(prompt_column="text"))
    with pytest.raises(StandardOutputError, match="standard output is closed"):
        run_job(config, lambda *_: pytest.fail("nothing is to be loaded"), identify_echo)


def test_rows_may_come_from_standard_input(tmp_path, monkeypatch):
    lines = "".join(f"{json.dumps({'text': f'a{number}'})}\n" for number in range(5))
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        summary = run("-", tmp_path / "out.jsonl")
    assert summary.rows_resumed == 5
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["_row"], row["response"]) for row in rows] == [(number, f"a{number}") for number in range(5)]


def test_run_may_lie_among_its_inputs(tmp_path):
    """What it saves beside its output is no input of the run that goes on."""

    class BreaksDown(EchoEngine):
        def step(self) -> list[Any]:
            if self._num_finished:
                raise ConnectionError
            return super().step()

        def recover(self, error: Exception) -> list[Any]:
            raise error

    pq.write_table(pa.table({"text": [f"a{number}" for number in range(12)]}), tmp_path / "in.parquet")
    with pytest.raises(ConnectionError):
        run(str(tmp_path), tmp_path / "out.parquet", BreaksDown())
    assert run(str(tmp_path), tmp_path / "out.parquet").rows_resumed > 0


def test_names_and_texts_need_not_be_unicode(tmp_path):
    source = write_jsonl(tmp_path / os.fsdecode(b"in\xff.jsonl"), {"text": "a"})
    output = tmp_path / os.fsdecode(b"out\xff.jsonl")
    summary = run_flags(source, "-o", str(output), "--seed", str(2**70), "--max-tokens", str(2**70))
    assert (summary.rows, summary.exit_code) == (1, 0)
    again = run_flags(source, "-o", str(output), "--seed", str(2**70), "--max-tokens", str(2**70))
    assert again.rows_resumed == 1
    # A prompt that is none is the rows' mistake.
    bad = run_flags(source, "-o", str(tmp_path / "bad.jsonl"), "--prompt", os.fsdecode(b"\xff {text}"))
    assert (bad.rows_failed, bad.exit_code) == (1, 3)


def test_twenty_thousand_rows_pass_through_a_bounded_window(tmp_path):
    texts = [f"{number % 7}" * (1 + number % 3) for number in range(20_000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    engine = EchoEngine(max_num_seqs=64)
    summary = run(str(tmp_path / "in.parquet"), tmp_path / "out.parquet", engine, engine=EngineConfig(max_num_seqs=64))
    assert summary.rows == 20_000
    assert engine.most_unfinished <= 5 * 64 + 64
    assert pq.read_table(tmp_path / "out.parquet")["response"].to_pylist() == texts


MEASURED_JOB = """
import sys
from pathlib import Path
from echo_engine import EchoEngine, identify_echo
from infer.cli.config import JobConfig
from infer.cli.job import run_job
from infer.cli.prompt import PromptSpec
config = JobConfig((sys.argv[1],), sys.argv[2], seed=0, prompt=PromptSpec(prompt_column="text"))
engine = EchoEngine(max_num_seqs=256)
engine.notes_together = False
run_job(config, lambda *_: engine, identify_echo)
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def peak_kib(source: Path, output: Path) -> int:
    """Of a process that runs the job and nothing else."""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", MEASURED_JOB, str(source), str(output)]
    return int(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


@pytest.mark.slow
@pytest.mark.reliability
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_million_rows_need_no_more_memory_than_ten_thousand(tmp_path, suffix, figure):
    peaks = []
    for num_rows in (10_000, 1_000_000):
        source = tmp_path / f"{num_rows}.{suffix}"
        texts = [f"{number % 7} is the answer" for number in range(num_rows)]
        if suffix == "parquet":
            pq.write_table(pa.table({"text": texts}), source)
        else:
            source.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
        output = tmp_path / f"{num_rows}.out.{suffix}"
        peaks.append(peak_kib(source, output))
        if suffix == "parquet":
            assert pq.read_metadata(output).num_rows == num_rows
    figure(f"memory, {suffix}", f"{peaks[1]:,} KiB for 1,000,000 rows, {peaks[0]:,} KiB for 10,000")
    assert peaks[1] <= 1.1 * peaks[0]
