"""`run.json` says what was run, or that it is damaged: never anything else."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from infer.io import storage
from infer.io.errors import StateError, StorageError
from infer.io.fingerprint import Fingerprint
from infer.io.run_record import RunRecord, now, read_run, write_run

if TYPE_CHECKING:
    from pathlib import Path

RUN = RunRecord(
    run_id="1f2e",
    created="2026-01-01T00:00:00+00:00",
    num_rows=10,
    seed=2**70,
    fingerprint=Fingerprint(
        {"rows": 10, "--stop": ["\u2028", "é", "\udcff"], "--logit-bias": {"5": 0.5}}, {"torch": "2"}
    ),
    job={"prompt": "{x}", "seed": None, "inputs": ["/\udcff.jsonl"]},
    output="/out.parquet",
)


def sealed(values: dict[str, Any]) -> bytes:
    values = {name: value for name, value in values.items() if name != "sha256"}
    sha256 = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return json.dumps({**values, "sha256": sha256}).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_run(tmp_path / "run.json", RUN)
    return tmp_path / "run.json"


def error_of(path: Path) -> str:
    with pytest.raises(StateError) as caught:
        read_run(path)
    assert "--restart" in caught.value.hint
    return str(caught.value)


def test_run_comes_back_as_it_was(path: Path) -> None:
    assert read_run(path) == RUN
    assert [each.name for each in path.parent.iterdir()] == ["run.json"]
    assert sealed(json.loads(path.read_bytes())) != path.read_bytes()
    path.write_bytes(sealed(json.loads(path.read_bytes())))
    assert read_run(path) == RUN


def test_no_run_is_none(tmp_path: Path) -> None:
    assert read_run(tmp_path / "run.json") is None


def test_damage_at_every_byte_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for position in range(len(data)):
        for bit in (1, 32):
            damaged = data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]
            path.write_bytes(damaged)
            if damaged.lower() == data.lower() and data[position - 5 : position].rpartition(b"\\u")[1]:
                # A digit of an escape, whose case makes no difference.
                assert read_run(path) == RUN
                continue
            assert error_of(path) == f"what is saved is damaged: {path}"


def test_run_that_was_cut_off_is_refused(path: Path) -> None:
    data = path.read_bytes()
    # The last byte is a line end, without which nothing is lost.
    for length in range(len(data) - 1):
        path.write_bytes(data[:length])
        assert error_of(path) == f"what is saved is damaged: {path}"


@pytest.mark.parametrize("value", [[], 7, None, "x", {}, {"sha256": "x"}])
def test_other_json_is_refused(path: Path, value: object) -> None:
    path.write_bytes(json.dumps(value).encode())
    assert error_of(path) == f"what is saved is damaged: {path}"
    if isinstance(value, dict):
        path.write_bytes(sealed(value))
        assert error_of(path) == f"what is saved is damaged: {path}"


def test_run_with_other_fields_is_refused(path: Path) -> None:
    values = json.loads(path.read_bytes())
    for changed in ({**values, "more": 1}, {name: value for name, value in values.items() if name != "seed"}):
        path.write_bytes(sealed(changed))
        assert error_of(path) == f"what is saved is damaged: {path}"


def test_run_of_another_format_is_refused_as_such_whatever_it_holds(path: Path) -> None:
    values = json.loads(path.read_bytes())
    for changed in (
        {**values, "format": 2},
        {**values, "format": 2, "more": 1, "fingerprint": {"other": 1}},
        {"format": 2},
    ):
        path.write_bytes(sealed(changed))
        assert error_of(path) == f"what is saved is of format 2, this infer has 1: {path}"


def test_run_of_another_format_that_is_damaged_is_damaged(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"format": 1', b'"format": 2'))
    assert error_of(path) == f"what is saved is damaged: {path}"


def test_run_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("fsync", "rename"):
        call = getattr(storage.os, name)
        monkeypatch.setattr(storage.os, name, lambda *args, _name=name, _call=call: (calls.append(_name), _call(*args)))
    write_run(tmp_path / "run.json", RUN)
    # The last is that of the directory.
    assert calls == ["fsync", "rename", "fsync"]


@pytest.mark.parametrize("name", ["write", "fsync", "rename"])
def test_run_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, name, refuse)
    with pytest.raises(StorageError, match="no space left on device"):
        write_run(tmp_path / "run.json", RUN)
    assert list(tmp_path.iterdir()) == []


def test_now_is_in_utc() -> None:
    assert now().endswith("+00:00")
    assert len(now()) == len("2026-01-01T00:00:00+00:00")
