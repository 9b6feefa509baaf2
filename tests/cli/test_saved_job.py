"""A job that is run again: it goes on, is done already, or is refused, and never computes a saved row twice."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from echo_engine import EchoEngine
from job_flags import run_flags

from infer.cli.errors import ExitCode
from infer.engine.errors import ModelError
from infer.io.errors import FingerprintError, InputError, OutputExistsError
from infer.io.journal import AttemptRecord, EnteredRecord, StopRecord, encode_record, read_journal
from infer.io.run_record import read_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from infer.cli.report import RunSummary

NUM_ROWS = 20


class StoppedEngine(EchoEngine):
    """Breaks down after so many rows."""

    def __init__(self, max_rows: int) -> None:
        super().__init__()
        self._max_rows = max_rows

    def step(self) -> list[Any]:
        if self._num_finished >= self._max_rows:
            raise BrokenDownError
        return super().step()

    def recover(self, error: Exception) -> list[Any]:
        raise error


class BrokenDownError(Exception):
    """Nobody foresaw it."""


class CountingEngine(EchoEngine):
    """Notes which rows it was asked for."""

    def __init__(self, asked: list[int]) -> None:
        super().__init__()
        self._asked = asked

    def add_request(self, request: Any) -> None:
        self._asked.append(request.request_id)
        super().add_request(request)


def no_engine() -> EchoEngine:
    pytest.fail("the model was loaded")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{json.dumps({'text': f'a{row}' if row % 7 else ''})}\n" for row in range(NUM_ROWS)))
    return path


def job(source: Path, output: Path, *flags: str, engine: Callable[[], EchoEngine] = EchoEngine) -> RunSummary:
    return run_flags(str(source), "-o", str(output), "--prompt-column", "text", *flags, engine=engine)


def stop_after(num_rows: int, source: Path, output: Path, *flags: str) -> None:
    with pytest.raises(BrokenDownError):
        job(source, output, *flags, engine=lambda: StoppedEngine(num_rows))


def rows_of(output: Path) -> list[tuple[int, str | None]]:
    rows = (
        pq.read_table(output).to_pylist()
        if output.suffix == ".parquet" or output.is_dir()
        else [json.loads(line) for line in output.read_text().splitlines()]
    )
    return [(row["_row"], row["response"]) for row in rows]


EXPECTED = [(row, f"a{row}" if row % 7 else None) for row in range(NUM_ROWS)]


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl", "out/"])
@pytest.mark.parametrize("num_rows", [0, 4, 16])
def test_run_goes_on_where_an_earlier_one_broke_down(source: Path, tmp_path: Path, name: str, num_rows: int) -> None:
    output = f"{tmp_path}/{name}"
    with pytest.raises(BrokenDownError):
        run_flags(str(source), "-o", output, engine=lambda: StoppedEngine(num_rows))
    assert not (tmp_path / name).exists()
    asked: list[int] = []
    summary = run_flags(str(source), "-o", output, engine=lambda: CountingEngine(asked))
    # The rows that failed before they reached the engine were saved, too.
    assert (summary.rows, summary.rows_failed, summary.exit_code) == (NUM_ROWS, 3, ExitCode.ROW_ERRORS)
    assert summary.rows_resumed >= num_rows
    assert len(asked) == NUM_ROWS - summary.rows_resumed
    assert rows_of(tmp_path / name) == EXPECTED


def test_run_that_is_done_is_not_run_again(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.parquet"
    job(source, output)
    before = output.stat()
    for _ in range(2):
        again = job(source, output, engine=no_engine)
        assert (again.rows, again.rows_resumed, again.rows_failed, again.exit_code) == (NUM_ROWS, NUM_ROWS, 3, 3)
        assert again.output == str(output)
        assert f"already done: {output}" in capsys.readouterr().err.splitlines()
        # Also where nothing but the file itself says so.
        for path in (tmp_path / "out.parquet.infer").glob("*"):
            path.unlink()
    assert output.stat() == before


def test_done_output_that_was_damaged_is_refused_and_replaced_on_demand(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    job(source, output)
    data = bytearray(output.read_bytes())
    data[100] ^= 1
    output.write_bytes(data)
    with pytest.raises(OutputExistsError, match=f"^the output exists: {output}$"):
        job(source, output, engine=no_engine)
    assert job(source, output, "--overwrite").rows_resumed == 0
    assert rows_of(output) == EXPECTED


def test_done_output_that_is_gone_is_made_again(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    job(source, output)
    output.unlink()
    assert job(source, output).rows_resumed == 0
    assert rows_of(output) == EXPECTED


def test_overwrite_runs_again(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    job(source, output)
    asked: list[int] = []
    assert job(source, output, "--overwrite", engine=lambda: CountingEngine(asked)).rows_resumed == 0
    assert len(asked) == NUM_ROWS - 3


def test_overwrite_goes_on_where_it_was_interrupted(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    output.write_text("old")
    stop_after(8, source, output, "--overwrite")
    assert output.read_text() == "old"
    assert job(source, output, "--overwrite").rows_resumed >= 8
    assert rows_of(output) == EXPECTED


def test_output_of_another_job_is_refused_with_what_differs(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    job(source, output)
    with pytest.raises(OutputExistsError) as caught:
        job(source, output, "--max-tokens", "3", engine=no_engine)
    assert str(caught.value) == (
        f"the output exists, and is of a job that differs in 1 field: --max-tokens: none -> 3: {output}"
    )
    assert caught.value.hint == "replace it with --overwrite"


def test_saved_rows_of_another_job_are_refused_with_what_differs(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    stop_after(8, source, output)
    with pytest.raises(FingerprintError) as caught:
        job(source, output, "--temperature", "0.5", "--system", "Be kind", engine=no_engine)
    assert str(caught.value) == (
        "what is saved belongs to a job that differs in 2 fields: --system: none -> Be kind; --temperature: none -> 0.5"
    )
    assert caught.value.hint == "run it as it was to continue, or discard its 11 saved rows with --restart"
    assert job(source, output, "--restart", "--temperature", "0.5").rows_resumed == 0


def test_nothing_saved_is_no_reason_to_refuse(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    source.write_text('{"text": "abcdef"}\n')
    stop_after(0, source, output)
    assert (tmp_path / "out.parquet.infer" / "run.json").exists()
    assert job(source, output, "--max-tokens", "2").exit_code == 0
    assert rows_of(output)[0][0] == 0


def test_input_that_changed_is_refused(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    stop_after(8, source, output)
    source.write_text(source.read_text().replace("a19", "b19"))
    with pytest.raises(FingerprintError, match=r"1 field: input file 1: .*sha256 .* -> .*sha256 "):
        job(source, output, engine=no_engine)


def test_input_that_changes_while_the_run_goes_on_is_found_before_anything_is_published(
    source: Path, tmp_path: Path
) -> None:
    class Meddler(EchoEngine):
        def step(self) -> list[Any]:
            source.write_text(original.replace("a19", "b19"))
            return super().step()

    original = source.read_text()
    with pytest.raises(InputError, match=f"has changed.*: {source}$"):
        job(source, tmp_path / "out.parquet", engine=Meddler)
    assert not (tmp_path / "out.parquet").exists()
    source.write_text(original)
    assert job(source, tmp_path / "out.parquet", engine=no_engine).rows_resumed == NUM_ROWS
    assert rows_of(tmp_path / "out.parquet") == EXPECTED


def test_input_may_be_moved_and_touched(source: Path, tmp_path: Path) -> None:
    stop_after(8, source, tmp_path / "out.parquet")
    moved = source.rename(tmp_path / "moved.jsonl")
    assert job(moved, tmp_path / "out.parquet").rows_resumed >= 8


def test_seed_is_drawn_once_and_kept(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(8, source, tmp_path / "out.parquet")
    run = read_run(tmp_path / "out.parquet.infer" / "run.json")
    assert run is not None
    job(source, tmp_path / "out.parquet")
    assert capsys.readouterr().err.count(f", seed {run.seed}\n") == 2
    job(source, tmp_path / "other.parquet")
    other = read_run(tmp_path / "other.parquet.infer" / "run.json")
    assert other is not None
    assert other.seed != run.seed


def test_state_can_be_kept_elsewhere(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    stop_after(8, source, output, "--state-dir", str(tmp_path / "states"))
    (state,) = (tmp_path / "states").iterdir()
    assert state.name.startswith("out.parquet-")
    assert not (tmp_path / "out.parquet.infer").exists()
    assert job(source, output, "--state-dir", str(tmp_path / "states")).rows_resumed >= 8


def test_run_gives_up_when_too_many_rows_fail_and_can_be_continued(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.parquet"
    for flags, allows in ((["--max-errors", "2"], 2), (["--on-error", "fail"], 0), (["--max-errors", "10%"], 2)):
        stopped = job(source, output, *flags)
        assert (stopped.exit_code, stopped.output, stopped.rows_failed) == (ExitCode.ROW_ERRORS, None, 3)
        said = capsys.readouterr().err
        assert f"3 rows failed, {' '.join(flags)} allows {allows}; rows saved: " in said
        assert not output.exists()
    assert job(source, output, "--max-errors", "3").exit_code == ExitCode.ROW_ERRORS
    assert rows_of(output) == EXPECTED


def test_row_that_brought_the_process_down_twice_while_alone_is_poison(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    stop_after(8, source, output)
    journal = tmp_path / "out.parquet.infer" / "journal"
    attempt = _last_attempt(journal)
    with journal.open("ab") as file:
        for record in (attempt, EnteredRecord(19), attempt, EnteredRecord(19)):
            file.write(encode_record(record))
        for _ in range(2):
            file.write(encode_record(attempt) + encode_record(_alone(15)))
    asked: list[int] = []
    summary = job(source, output, engine=lambda: CountingEngine(asked))
    assert summary.rows == NUM_ROWS
    assert 15 not in asked
    table = pq.read_table(output).to_pylist()
    assert (table[15]["response"], table[15]["error_code"]) == (None, "poison")
    assert [row["response"] for row in table if row["_row"] != 15] == [text for row, text in EXPECTED if row != 15]


def _last_attempt(journal: Path) -> AttemptRecord:
    return [record for record in read_journal(journal) if isinstance(record, AttemptRecord)][-1]


def _alone(row: int) -> Any:
    from infer.io.journal import AloneRecord

    return AloneRecord(row)


def test_soft_change_is_said_and_goes_on(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class OnAnotherDevice(EchoEngine):
        def identity(self) -> dict[str, str]:
            return super().identity() | {"device": "other"}

    stop_after(8, source, tmp_path / "out.parquet")
    job(source, tmp_path / "out.parquet", engine=OnAnotherDevice)
    said = capsys.readouterr().err.splitlines()
    assert "differs from when the run began, answers may be rounded differently: device: none -> other" in said


def test_dtype_that_changed_is_refused_after_loading(source: Path, tmp_path: Path) -> None:
    class InAnotherType(EchoEngine):
        def identity(self) -> dict[str, str]:
            return super().identity() | {"dtype of the model": "bfloat16"}

    stop_after(8, source, tmp_path / "out.parquet")
    with pytest.raises(FingerprintError, match=r"1 field: dtype of the model: none -> bfloat16$"):
        job(source, tmp_path / "out.parquet", engine=InAnotherType)
    assert job(source, tmp_path / "out.parquet").rows_resumed >= 8


def test_input_without_rows_gives_an_output_without_rows(tmp_path: Path) -> None:
    import pyarrow as pa

    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "in.parquet")
    summary = job(tmp_path / "in.parquet", tmp_path / "out.parquet", engine=no_engine)
    assert (summary.rows, summary.exit_code) == (0, 0)
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 0
    assert job(tmp_path / "in.parquet", tmp_path / "out.parquet", engine=no_engine).exit_code == 0


class ModelFails(StoppedEngine):
    def recover(self, error: Exception) -> list[Any]:
        raise ModelError("the device is lost")


class IsStopped(EchoEngine):
    def step(self) -> list[Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().step()


@pytest.mark.parametrize(
    ("flags", "engine", "reason"),
    [
        (["--on-error", "fail"], EchoEngine, "errors"),
        ([], lambda: ModelFails(4), "error"),
        ([], IsStopped, "SIGTERM"),
    ],
)
def test_orderly_end_is_noted_and_counts_as_no_death(
    source: Path, tmp_path: Path, flags: list[str], engine: Callable[[], EchoEngine], reason: str
) -> None:
    with suppress(ModelError):
        job(source, tmp_path / "out.parquet", *flags, engine=engine)
    assert read_journal(tmp_path / "out.parquet.infer" / "journal")[-1] == StopRecord(reason)
