"""Where the state of an output lies, and what is decided before anything is run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from echo_engine import EchoEngine
from job_flags import config_of, run_flags

from infer.cli.resume import Done, changed, open_state, recover, state_directory, take_up
from infer.io.errors import FingerprintError, LockedError, OutputExistsError, StateError, StorageError
from infer.io.fingerprint import Difference, Fingerprint
from infer.io.journal import FileRecord
from infer.io.output import open_output
from infer.io.output_record import OutputColumns, OutputRecord
from infer.io.run_record import RunRecord
from infer.io.run_state import RunState
from infer.io.seal import check_seal

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 6
OUTPUT = OutputRecord("1d", "ab", NUM_ROWS, OutputColumns((), {}))
ONE, OTHER = Fingerprint({"rows": NUM_ROWS}, {}), Fingerprint({"rows": NUM_ROWS, "--seed": 1}, {})


class BreaksDown(EchoEngine):
    def step(self) -> list[object]:  # type: ignore[override]
        if self._num_finished:
            raise ConnectionError
        return [*super().step()]

    def recover(self, error: Exception) -> list[object]:  # type: ignore[override]
        raise error


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{json.dumps({'text': f'a{row}'})}\n" for row in range(NUM_ROWS)))
    return str(path)


@pytest.fixture
def begun(source: str, tmp_path: Path) -> list[str]:
    """The flags of a run that broke down."""
    flags = [source, "-o", str(tmp_path / "out.parquet")]
    with pytest.raises(ConnectionError):
        run_flags(*flags, engine=BreaksDown)
    return flags


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_state_lies_beside_the_output(tmp_path: Path) -> None:
    assert state_directory(tmp_path / "out.parquet", None) == tmp_path / "out.parquet.infer"
    assert state_directory(open_output(f"{tmp_path}/out/").path, None) == tmp_path / "out.infer"


def test_states_of_outputs_of_one_name_do_not_meet_elsewhere(tmp_path: Path) -> None:
    one, other = (state_directory(tmp_path / name / "out.parquet", str(tmp_path)) for name in ("a", "b"))
    assert one != other
    assert one == state_directory(tmp_path / "a" / "out.parquet", str(tmp_path))
    for each in (one, other):
        assert each.parent == tmp_path
        assert each.name.startswith("out.parquet-")
        assert each.name.endswith(".infer")
        assert len(each.name) == len("out.parquet-12345678.infer")
    # A name need not be UTF-8.
    assert state_directory(tmp_path / "\udcff", str(tmp_path)).parent == tmp_path


def test_state_directory_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert state_directory(tmp_path / "out.parquet", "states").parent == tmp_path / "states"


def test_state_is_opened_once(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    with open_state(output, str(tmp_path / "states"), []) as state:
        assert state.directory.parent == tmp_path / "states"
        with pytest.raises(LockedError):
            open_state(output, str(tmp_path / "states"), [])
    with pytest.raises(StorageError, match="no such file or directory"):
        open_state(output, str(tmp_path / "no" / "states"), [])


def test_restart_forgets_the_run_and_what_it_left_aside(begun: list[str], tmp_path: Path) -> None:
    output = open_output(tmp_path / "out.parquet")
    with RunState(tmp_path / "out.parquet.infer", []) as state:
        state.recover()
        assert state.run is not None
        output.aside(state.run.run_id).write_text("part of it")
    with RunState(tmp_path / "out.parquet.infer", []) as state:
        recover(state, output, config_of(*begun, "--restart"))
        assert state.run is None
        assert names(tmp_path) == {"in.jsonl", "out.parquet.infer"}
        assert names(state.directory) == {"lock"}


def test_restart_of_a_run_that_has_ended_forgets_nothing_without_overwrite(source: str, tmp_path: Path) -> None:
    flags = [source, "-o", str(tmp_path / "out.parquet")]
    run_flags(*flags)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    for changes in ((), ("--temperature", "0.5")):
        with pytest.raises(OutputExistsError) as caught:
            run_flags(*flags, *changes, "--restart")
        assert str(caught.value) == f"the output exists: {tmp_path / 'out.parquet'}"
        assert caught.value.hint == "replace it with --overwrite"
        assert all(path.read_bytes() == data for path, data in before.items())
    assert run_flags(*flags, "--restart", "--overwrite").rows_resumed == 0


def test_restart_forgets_a_run_that_is_damaged(begun: list[str], tmp_path: Path) -> None:
    output, state_path = open_output(tmp_path / "out.parquet"), tmp_path / "out.parquet.infer"
    (state_path / "run.json").write_text("{")
    with RunState(state_path, []) as state, pytest.raises(StateError):
        recover(state, output, config_of(*begun))
    with RunState(state_path, []) as state:
        recover(state, output, config_of(*begun, "--restart"))
        assert state.run is None


def test_restart_forgets_nothing_where_the_output_is_another_ones(begun: list[str], tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_text("precious")
    with RunState(tmp_path / "out.parquet.infer", []) as state, pytest.raises(OutputExistsError):
        recover(state, open_output(tmp_path / "out.parquet"), config_of(*begun, "--restart"))
    (tmp_path / "out.parquet").unlink()
    assert run_flags(*begun).rows_resumed > 0


@pytest.mark.parametrize("is_begun", [False, True])
def test_output_of_others_is_refused_at_once(source: str, tmp_path: Path, is_begun: bool) -> None:
    output = tmp_path / "out.parquet"
    flags = [source, "-o", str(output)]
    if is_begun:
        with pytest.raises(ConnectionError):
            run_flags(*flags, engine=BreaksDown)
    output.write_text("precious")

    def no_engine() -> EchoEngine:
        pytest.fail("the model was loaded")

    with pytest.raises(OutputExistsError, match=f"^the output exists: {output}$"):
        run_flags(*flags, engine=no_engine)
    assert output.read_text() == "precious"
    assert (tmp_path / "out.parquet.infer").exists() == is_begun


class Saved:
    """A state with all its rows."""

    def __init__(self, directory: Path, name: str = "out.jsonl") -> None:
        self.directory = directory
        self.output = open_output(f"{directory}/{name}")
        self.state = RunState(directory / "s.infer", [])
        self.state.recover()
        self.state.begin(RunRecord("1f2e", "", NUM_ROWS, 0, ONE, {}, str(self.output.path)))

    def save(self) -> None:
        import pyarrow as pa

        schema = pa.schema([("error_code", pa.string()), ("_row", pa.int64())])
        self.state.save([{"error_code": "oom", "_row": row} for row in range(NUM_ROWS)], schema)

    def note_publish(self, data: bytes) -> None:
        import hashlib

        self.state.note_publish([FileRecord(len(data), hashlib.sha256(data).hexdigest())], OUTPUT)

    def take_up(self, fingerprint: Fingerprint, *flags: str) -> Done | None:
        config = config_of("in.jsonl", "-o", str(self.output.path), *flags)
        return take_up(self.state, self.output, fingerprint, config)


DONE = Done(NUM_ROWS, {"oom": NUM_ROWS})


def test_end_that_missed_its_last_line_gets_it(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    with saved.state:
        saved.save()
        saved.note_publish(b"data")
        saved.output.path.write_bytes(b"data")
        saved.output.aside("1f2e").write_text("left")
        # Also where it was asked to overwrite: it has.
        assert saved.take_up(ONE, "--overwrite") == DONE
        assert saved.state.progress.final is not None
        assert names(tmp_path) == {"out.jsonl", "s.infer"}
        assert names(saved.state.directory) == {"lock", "run.json", "journal"}


def test_end_that_missed_its_rename_is_done_again(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    with saved.state:
        saved.save()
        saved.note_publish(b"data")
        saved.output.aside("1f2e").write_bytes(b"data")
        assert saved.take_up(ONE) is None
        assert names(tmp_path) == {"s.infer"}
        assert len(saved.state.saved) == NUM_ROWS
        # Or something else has the name.
        saved.output.path.write_bytes(b"other")
        with pytest.raises(OutputExistsError):
            saved.take_up(ONE)
        assert saved.take_up(ONE, "--overwrite") is None


def test_rows_of_another_job_are_kept_and_it_is_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    with saved.state:
        saved.save()
        with pytest.raises(FingerprintError, match=r"differs in 1 field: --seed: none -> 1$"):
            saved.take_up(OTHER, "--overwrite")
        assert len(saved.state.saved) == NUM_ROWS


def test_run_without_rows_gives_way_to_another_job(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    with saved.state:
        saved.output.aside("1f2e").write_text("left")
        assert saved.take_up(ONE) is None
        assert saved.state.run is not None
        saved.output.aside("1f2e").write_text("left")
        assert saved.take_up(OTHER) is None
        assert saved.state.run is None
        assert names(tmp_path) == {"s.infer"}


@pytest.fixture
def ended(tmp_path: Path) -> Saved:
    """Looked at by another process than the one that ended it."""
    saved = Saved(tmp_path)
    with saved.state:
        saved.save()
        saved.note_publish(b"data")
        saved.output.path.write_bytes(b"data")
        saved.state.finish()
    saved.state = RunState(tmp_path / "s.infer", [])
    saved.state.recover()
    return saved


def test_run_that_ended_gives_way_to_itself_on_demand(ended: Saved) -> None:
    with ended.state:
        assert ended.take_up(ONE, "--overwrite") is None
        assert ended.state.run is None
        assert ended.output.path.read_bytes() == b"data"


def test_run_that_ended_gives_way_only_where_its_output_may_go(ended: Saved) -> None:
    saved = ended
    with saved.state:
        assert saved.take_up(ONE) == DONE
        with pytest.raises(OutputExistsError, match=r"is of a job that differs in 1 field: --seed: none -> 1: "):
            saved.take_up(OTHER)
        # Somebody has written to it.
        saved.output.path.write_bytes(b"more")
        with pytest.raises(OutputExistsError, match=r"^the output exists: "):
            saved.take_up(ONE)
        assert saved.state.run is not None
        assert saved.take_up(ONE, "--overwrite") is None
        assert saved.state.run is None


def test_fields_that_are_known_only_after_loading_are_no_difference(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    with saved.state:
        saved.save()
        assert saved.state.run is not None
        run = saved.state.run
        loaded = Fingerprint({**run.fingerprint.hard, "dtype of the model": "x"}, {})
        saved.state.run = RunRecord("1f2e", "", NUM_ROWS, 0, loaded, {}, "")
        assert saved.take_up(ONE) is None


def test_output_that_says_it_is_this_jobs_is_done_without_any_state(source: str, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    run_flags(source, "-o", str(output))
    assert check_seal(output)[1] == ""
    for path in (tmp_path / "out.parquet.infer").iterdir():
        path.unlink()
    (tmp_path / "out.parquet.infer").rmdir()
    assert run_flags(source, "-o", str(output), engine=BreaksDown).rows_resumed == NUM_ROWS
    with pytest.raises(OutputExistsError, match=r"^the output exists: "):
        run_flags(source, "-o", str(output), "--seed", "1", engine=BreaksDown)
    assert run_flags(source, "-o", str(output), "--overwrite").rows_resumed == 0


def test_many_differences_are_not_all_shown() -> None:
    error = changed([Difference(f"--f{number}", 0, 1) for number in range(10)], 12_345)
    assert str(error).startswith("what is saved belongs to a job that differs in 10 fields: --f0: 0 -> 1; --f1: ")
    assert str(error).endswith("--f7: 0 -> 1; ...")
    assert error.hint == "run it as it was to continue, or discard its 12,345 saved rows with --restart"
    assert not str(changed([Difference("--f", 0, 1)] * 8, 1)).endswith("...")
