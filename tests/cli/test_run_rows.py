"""Which rows are run, and when it is given up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from echo_engine import EchoEngine
from job_flags import run_flags

from infer.cli.run_rows import RowsToRun
from infer.io.row import Row, RowError
from infer.io.run_state import RunState

if TYPE_CHECKING:
    from pathlib import Path


def rows(num_rows: int) -> list[Row]:
    return [Row(index, None, offset=index) for index in range(num_rows)]


def test_rows_that_are_done_are_left_out() -> None:
    given = rows(6)
    assert list(RowsToRun().select(iter(given))) == given
    assert list(RowsToRun(done={0, 3, 5}).select(iter(given))) == [given[1], given[2], given[4]]
    # Those that run alone are among them: it is the loop that puts them aside.
    assert list(RowsToRun(done={0}, alone=frozenset({1, 2})).select(iter(given))) == given[1:]


def test_row_that_is_poison_is_an_error_in_its_place() -> None:
    given = rows(3)
    first, poison, last = RowsToRun(poison=frozenset({1})).select(iter(given))
    assert (first, last) == (given[0], given[2])
    assert (poison.index, poison.offset, poison.block) == (1, 1, None)
    assert poison.error == RowError("poison", "the process died twice while it ran nothing but this row")


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    return str(path)


class CountsSteps(EchoEngine):
    """Rows of other numbers end at once."""

    num_steps = 0

    def step(self) -> list[Any]:
        CountsSteps.num_steps += 1
        return super().step()


@pytest.fixture(autouse=True)
def _no_steps() -> None:
    CountsSteps.num_steps = 0


def test_run_gives_up_as_soon_as_too_many_rows_have_failed(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", ["a"] * 5 + [""] * 3 + ["a"] * 10_000)
    summary = run_flags(source, "-o", str(tmp_path / "out.parquet"), "--max-errors", "2", engine=CountsSteps)
    assert (summary.exit_code, summary.output, summary.rows_failed) == (3, None, 3)
    assert CountsSteps.num_steps < 5
    assert not (tmp_path / "out.parquet").exists()


def test_run_that_stays_within_the_limit_goes_on(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", ["a", "", ""])
    summary = run_flags(source, "-o", str(tmp_path / "out.parquet"), "--max-errors", "2")
    assert (summary.rows, summary.output) == (3, str(tmp_path / "out.parquet"))


def test_run_that_had_too_many_errors_is_not_loaded_again(tmp_path: Path) -> None:
    flags = [write(tmp_path / "in.jsonl", ["", "", *["a"] * 20_000]), "-o", str(tmp_path / "out.parquet")]
    run_flags(*flags, "--max-errors", "1")

    def no_engine() -> EchoEngine:
        pytest.fail("the model was loaded")

    assert run_flags(*flags, "--max-errors", "1", engine=no_engine).rows_failed == 2


def test_rows_that_fail_at_the_very_end_count(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", ["a", ""])
    assert run_flags(source, "-o", str(tmp_path / "out.parquet"), "--on-error", "fail").output is None
    assert not (tmp_path / "out.parquet").exists()


def test_cache_is_fitted_to_what_is_left(tmp_path: Path) -> None:
    class BreaksDown(EchoEngine):
        def step(self) -> list[Any]:
            if self._num_finished:
                raise ConnectionError
            return super().step()

        def recover(self, error: Exception) -> list[Any]:
            raise error

    flags = [write(tmp_path / "in.jsonl", [*"abcdefghij"]), "-o", str(tmp_path / "out.parquet"), "--max-tokens", "3"]
    with pytest.raises(ConnectionError):
        run_flags(*flags, engine=BreaksDown)
    engine = EchoEngine()
    num_left = 10 - run_flags(*flags, engine=lambda: engine).rows_resumed
    num_tokens = len(engine.tokenizer.encode("a", add_special_tokens=False))
    assert engine.fitted == [(num_left, num_tokens + 3)]
    assert 0 < num_left < 10


class CountsRead(EchoEngine):
    """Dies at its first step, as by an error that nothing catches; `num_read` rows were tokenised until then."""

    num_read = 0

    def __init__(self) -> None:
        super().__init__()
        encode = self.tokenizer.encode_each

        def encode_each(prompts: Any, **settings: Any) -> Any:
            CountsRead.num_read += len(prompts)
            return encode(prompts, **settings)

        self.tokenizer.encode_each = encode_each  # type: ignore[method-assign]

    def step(self) -> list[Any]:
        if self._num_steps == 100:
            raise ConnectionError
        self._num_steps += 1
        return []

    def recover(self, error: Exception) -> list[Any]:
        raise error


@pytest.mark.parametrize(("num_deaths", "most"), [(0, 10_000), (1, 1024 + 64)])
def test_few_rows_are_read_ahead_once_the_process_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_deaths: int, most: int
) -> None:
    flags = [write(tmp_path / "in.jsonl", [f"a{n}" for n in range(9_000)]), "-o", str(tmp_path / "out.parquet")]
    with monkeypatch.context() as death:
        # What a process that dies does not come to.
        death.setattr(RunState, "note_stop", lambda *_: None)
        for _ in range(num_deaths):
            with pytest.raises(ConnectionError):
                run_flags(*flags, engine=CountsRead)
    CountsRead.num_read = 0
    with pytest.raises(ConnectionError):
        run_flags(*flags, engine=CountsRead)
    assert most / 2 < CountsRead.num_read <= most
