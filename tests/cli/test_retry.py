"""`infer retry`: failed rows run again, all others stay as they were."""

from __future__ import annotations

import io
import json
import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from echo_engine import EchoEngine, identify_echo
from echo_job import Crash, CrashingEngine, leave_lock, run_flags

from infer.cli.errors import ExitCode, UsageError
from infer.cli.retry_job import RetryConfig, parse_codes, retry_job
from infer.io.errors import FingerprintError, InputError, LockedError, StorageError, VerificationError
from infer.io.expected_output import expected_output
from infer.io.output_file import OutputFile
from infer.io.run_state import RunState
from infer.io.status import RunPhase, read_status
from infer.io.verify import verify_output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from infer.cli.report import RunSummary

NUM_ROWS = 50
# More often than a run tries by itself.
FAILURES = {3: ["timeout"] * 9, 7: ["oom"] * 9, 20: ["internal"] * 9, 21: ["timeout"] * 9}
EMPTY = 9


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    texts = ["" if number == EMPTY else f"row {number}" for number in range(NUM_ROWS)]
    pq.write_table(pa.table({"id": range(NUM_ROWS), "text": texts}), tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


def run(output: str, failures: Mapping[int, Sequence[str]] = FAILURES, **flags: Any) -> RunSummary:
    return run_flags("in.parquet", output, EchoEngine(failures=failures), **flags)


def retry(output: str, codes: str = "oom,timeout", engine: EchoEngine | None = None, **settings: Any) -> RunSummary:
    config = RetryConfig(output, parse_codes(codes), **settings)
    return retry_job(config, lambda *_: engine or EchoEngine(), identify_echo)


def no_engine(*_: object) -> EchoEngine:
    pytest.fail("the model was loaded")


def results(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return pq.read_table(path).to_pylist()


def codes_of(path: Path) -> dict[int, str]:
    return {row["_row"]: row["error_code"] for row in results(path) if row["error_code"] is not None}


@pytest.mark.parametrize("output", ["out.parquet", "out.jsonl", "out/"])
def test_rows_that_failed_with_the_codes_run_again_and_no_others(source, output, capsys):
    run(output, prefix="llm.", keep="id", logprobs=1, n=2, temperature=1.0)
    path = source.with_name(output.rstrip("/"))
    before = results(path)
    engine = EchoEngine()

    summary = retry(output, engine=engine)

    after = results(path)
    assert set().union(*engine.together) == {3, 7, 21}
    changed = [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    assert changed == [3, 7, 21]
    assert {row["llm._row"]: row["llm.error_code"] for row in after if row["llm.error_code"]} == {
        EMPTY: "empty_prompt",
        20: "internal",
    }
    assert after[3]["llm.responses"] == ["row 3", "row 3"]
    assert (summary.rows, summary.rows_failed, summary.rows_resumed) == (NUM_ROWS, 2, NUM_ROWS - 3)
    assert summary.exit_code == ExitCode.ROW_ERRORS
    said = capsys.readouterr().err
    assert "retrying: 3 of 50 rows (2 timeout, 1 oom), the others are kept" in said
    expected = expected_output(path.with_name(f"{path.name}.infer"))
    assert expected is not None
    assert verify_output(path, expected=expected).findings == ()


def test_all_codes_are_retried_where_that_is_asked_for(source):
    run("out.parquet")
    assert retry("out.parquet", "all").rows_failed == 1
    assert codes_of(source.with_name("out.parquet")) == {EMPTY: "empty_prompt"}


def test_row_is_drawn_with_the_seed_of_the_run(source):
    seeds: dict[int, list[int]] = {}

    class NotingEngine(EchoEngine):
        def add_request(self, request: Any) -> None:
            seeds.setdefault(request.request_id, []).append(request.seed)
            super().add_request(request)

    run_seeds = NotingEngine(failures=FAILURES)
    run("out.parquet", seed=None)
    config = RetryConfig("out.parquet", parse_codes("all"))
    retry_job(config, lambda *_: run_seeds, identify_echo)
    retried = dict(seeds)
    seed = read_status(source.with_name("out.parquet.infer")).run.seed
    run("other.parquet", seed=seed)
    seeds.clear()
    retry_job(RetryConfig("other.parquet", parse_codes("all")), lambda *_: NotingEngine(), identify_echo)
    assert {row: values[0] for row, values in retried.items()} == {row: values[0] for row, values in seeds.items()}


def test_nothing_to_retry_is_said_and_the_model_is_not_loaded(source, capsys):
    run("out.parquet", {})
    before = source.with_name("out.parquet").stat()
    summary = retry_job(RetryConfig("out.parquet", parse_codes("oom")), no_engine, no_engine)
    assert summary.exit_code == ExitCode.ROW_ERRORS
    assert capsys.readouterr().err.endswith(
        "nothing to retry: of 50 rows none failed with oom; failed are 1 empty_prompt\n"
        "hint: name other codes with --codes, or all\n"
    )
    allowed = RetryConfig("out.parquet", parse_codes("oom"), changed={"allow_errors": True})
    assert retry_job(allowed, no_engine, no_engine).exit_code == ExitCode.DONE
    assert source.with_name("out.parquet").stat() == before


def test_run_that_has_not_ended_is_refused(source):
    assert run("out.parquet", max_errors="1").exit_code == ExitCode.ROW_ERRORS
    with pytest.raises(InputError, match="the run has not ended, rows saved: ") as caught:
        retry("out.parquet")
    assert caught.value.hint.startswith("run the same command again first")


def test_run_without_state_is_refused(source):
    run("out.parquet")
    with pytest.raises(InputError, match=r"nothing is saved of a run with this output: ot.parquet") as caught:
        retry("ot.parquet")
    assert caught.value.hint == "did you mean 'out.parquet.infer'?"
    source.with_name("out.parquet.infer").rename(source.with_name("away"))
    with pytest.raises(InputError) as caught:
        retry("out.parquet")
    assert caught.value.hint.startswith("infer verify tells whether the output is whole")


def test_input_that_has_changed_is_refused_and_nothing_changes(source):
    run("out.parquet")
    before = source.with_name("out.parquet").read_bytes()
    pq.write_table(pq.read_table(source).slice(1), source)
    with pytest.raises(FingerprintError, match="input file 1"):
        retry_job(RetryConfig("out.parquet", parse_codes("all")), no_engine, identify_echo)
    assert source.with_name("out.parquet").read_bytes() == before
    assert read_status(source.with_name("out.parquet.infer")).phase is RunPhase.DONE


def test_model_that_loads_differently_is_refused_and_nothing_changes(source):
    run("out.parquet")

    class OtherEngine(EchoEngine):
        def identity(self) -> dict[str, str]:
            return {**super().identity(), "dtype of the model": "other"}

    with pytest.raises(FingerprintError, match="dtype of the model: none -> other"):
        retry("out.parquet", engine=OtherEngine())
    assert read_status(source.with_name("out.parquet.infer")).phase is RunPhase.DONE
    assert retry("out.parquet").rows_failed == 2


@pytest.mark.parametrize("output", ["out.parquet", "out.jsonl"])
def test_output_that_is_not_what_was_written_is_refused(source, output):
    run(output)
    path = source.with_name(output)
    whole = path.read_bytes()
    path.write_bytes(whole[:30] + bytes([whole[30] ^ 1]) + whole[31:])
    with pytest.raises(VerificationError, match="the output is not what its run has written"):
        retry_job(RetryConfig(output, parse_codes("all")), no_engine, identify_echo)
    path.unlink()
    with pytest.raises(InputError, match="the output is gone"):
        retry_job(RetryConfig(output, parse_codes("all")), no_engine, identify_echo)


@pytest.mark.parametrize("output", ["out.parquet", "out.jsonl", "out/"])
@pytest.mark.parametrize("again", ["retry", "run"])
def test_retry_that_died_is_continued_by_a_retry_or_a_run(source, output, again):
    run(output)
    path = source.with_name(output.rstrip("/"))
    directory = path.with_name(f"{path.name}.infer")
    before = results(path)
    with pytest.raises(Crash):
        retry(output, engine=CrashingEngine())
    leave_lock(directory)
    status = read_status(directory)
    assert (status.phase, status.progress.num_rows) == (RunPhase.DIED, NUM_ROWS - 3)
    assert results(path) == before
    assert verify_output(path, expected=expected_output(directory)).findings == ()

    summary = retry(output, "internal") if again == "retry" else run(output, {})

    assert (summary.rows, summary.rows_failed, summary.rows_resumed) == (NUM_ROWS, 2, NUM_ROWS - 3)
    assert [row["_row"] for row in results(path)] == list(range(NUM_ROWS))
    assert codes_of(path) == {EMPTY: "empty_prompt", 20: "internal"}
    assert read_status(directory).phase is RunPhase.DONE
    assert verify_output(path, expected=expected_output(directory)).findings == ()


def test_retry_of_all_rows_that_was_stopped_at_once_knows_its_output_still(source):
    run("out.parquet", {row: ["timeout"] * 9 for row in range(NUM_ROWS)}, limit=3)
    assert len(codes_of(source.with_name("out.parquet"))) == 3

    def stopping(*_: object) -> EchoEngine:
        engine = EchoEngine()
        engine.step = lambda: signal.raise_signal(signal.SIGTERM) or []
        return engine

    config = RetryConfig("out.parquet", parse_codes("timeout"))
    assert retry_job(config, stopping, identify_echo).exit_code == ExitCode.STOPPED
    assert len(codes_of(source.with_name("out.parquet"))) == 3
    assert retry("out.parquet").exit_code == ExitCode.DONE


def test_output_that_somebody_replaced_meanwhile_is_not_overwritten(source):
    run("out.parquet")
    with pytest.raises(Crash):
        retry("out.parquet", engine=CrashingEngine())
    source.with_name("out.parquet").write_bytes(b"theirs")
    with pytest.raises(FileExistsError, match="the output exists"):
        retry("out.parquet")
    assert source.with_name("out.parquet").read_bytes() == b"theirs"


def test_failure_before_all_is_kept_changes_nothing(source, monkeypatch):
    run("out.parquet")
    directory = source.with_name("out.parquet.infer")
    before = (directory / "journal").read_bytes()
    from infer.io import segment

    def full(*_: object) -> None:
        raise StorageError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(segment.NewFile, "commit", full)
        with pytest.raises(StorageError):
            retry("out.parquet")
    # A word about the end of the process may follow.
    assert (directory / "journal").read_bytes().startswith(before)
    assert read_status(directory).phase is RunPhase.DONE
    assert retry("out.parquet").rows_failed == 2


def test_deaths_of_a_poisonous_row_are_forgotten(source):
    directory = source.with_name("out.parquet.infer")
    for when in (None, None, frozenset([0]), frozenset([0])):
        with pytest.raises(Crash):
            run_flags("in.parquet", "out.parquet", CrashingEngine(when))
    leave_lock(directory)
    assert read_status(directory).suspects.poison == {0}
    assert run("out.parquet", {}).rows_failed == 2
    assert codes_of(source.with_name("out.parquet")) == {0: "poison", EMPTY: "empty_prompt"}
    assert retry("out.parquet", "poison").rows_failed == 1


def test_standard_input_is_gone(source, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"text": "a"}\n{"text": ""}\n')))
    run_flags("-", "out.parquet")
    with pytest.raises(InputError, match="the run has read standard input"):
        retry("out.parquet", "all")


def test_settings_that_decide_no_answer_may_differ(source):
    run("out.parquet")
    configs: list[Any] = []

    def load(config: Any, _: object) -> EchoEngine:
        configs.append(config)
        return EchoEngine()

    changed = {"max_num_seqs": 3, "row_timeout": 9.0}
    retry_job(RetryConfig("out.parquet", parse_codes("all"), changed=changed), load, identify_echo)
    assert (configs[0].max_num_seqs, configs[0].row_timeout) == (3, 9.0)


def test_state_elsewhere_and_the_state_itself_can_be_named(source):
    run("out.parquet", state_dir="states")
    assert retry("out.parquet", "timeout", state_dir="states").rows_failed == 3
    (directory,) = source.with_name("states").iterdir()
    assert retry(str(directory), "oom").rows_failed == 2


def test_one_at_a_time(source):
    run("out.parquet")
    with RunState(source.with_name("out.parquet.infer"), ["other"]), pytest.raises(LockedError):
        retry("out.parquet")


def test_retry_from_another_directory_finds_what_the_run_has_read(source, monkeypatch):
    (source.parent / "elsewhere").mkdir()
    source.with_name("prompt.txt").write_text("say {text}\n")
    run("out.parquet", prompt_file="prompt.txt", prompt_column=None)
    source.with_name("prompt.txt").unlink()
    monkeypatch.chdir(source.parent / "elsewhere")
    assert retry("../out.parquet", "all").rows_failed == 0


@pytest.mark.parametrize(("text", "codes"), [("oom", {"oom"}), (" oom , timeout", {"oom", "timeout"}), ("all", None)])
def test_codes_are_names_separated_by_commas(text, codes):
    assert parse_codes(text) == codes


@pytest.mark.parametrize("text", ["", "oom,,timeout", ","])
def test_codes_without_a_name_are_refused(text):
    with pytest.raises(UsageError, match="--codes takes names"):
        parse_codes(text)


def test_run_takes_a_damaged_output_for_no_finished_one(source):
    run("out.parquet")
    path = source.with_name("out.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:30] + bytes([whole[30] ^ 1]) + whole[31:])
    with pytest.raises(FileExistsError, match="the output exists"):
        run("out.parquet")
    assert run("out.parquet", overwrite=True).rows_resumed == 0


@pytest.mark.parametrize("is_renamed", [False, True])
def test_retry_that_died_around_the_rename_is_ended_by_the_next(source, monkeypatch, is_renamed):
    run("out.jsonl")
    path = source.with_name("out.jsonl")

    def crash(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(*(RunState, "finish") if is_renamed else (OutputFile, "publish"), crash)
        with pytest.raises(Crash):
            retry("out.jsonl")
    assert len(codes_of(path)) == (2 if is_renamed else 5)
    # Nobody can tell which of the two outputs it is.
    assert expected_output(path.with_name("out.jsonl.infer")) is None
    assert retry_job(RetryConfig("out.jsonl", None), no_engine, identify_echo).rows_failed == 2
    assert codes_of(path) == {EMPTY: "empty_prompt", 20: "internal"}
    assert verify_output(path, expected=expected_output(path.with_name("out.jsonl.infer"))).findings == ()


def test_output_that_changes_while_the_model_is_loaded_is_refused(source):
    run("out.jsonl")

    def load(*_: object) -> EchoEngine:
        source.with_name("out.jsonl").write_text("theirs")
        return EchoEngine()

    with pytest.raises(VerificationError, match="the output is not what its run has written"):
        retry_job(RetryConfig("out.jsonl", None), load, identify_echo)
    assert read_status(source.with_name("out.jsonl.infer")).phase is RunPhase.DONE


def test_names_that_are_not_utf_8_are_found_again(source):
    name = os.fsdecode(b"in-\xff.jsonl")
    source.with_name(name).write_text("".join(f'{{"text": "row {number}"}}\n' for number in range(NUM_ROWS)))
    output = os.fsdecode(b"out-\xff.jsonl")
    run_flags(name, output, EchoEngine(failures=FAILURES))
    assert retry(output, "internal").rows_failed == 3
    assert retry(f"{output}.infer").rows_failed == 0
