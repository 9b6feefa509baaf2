"""JSONL from a pipe, which can be read only once, as a source, which is read twice."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from infer.io.errors import InputError
from infer.io.reader import open_source


def pipe_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_standard_input_is_read_as_jsonl(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_in(monkeypatch, b'{"n": 1}\n\noops\n{"n": 3}')
    source = open_source(["-"])
    assert source.num_rows == 3
    for _ in range(2):
        rows = list(source.rows(["n"]))
        assert [row.get("n") for row in rows] == [1, None, 3]
    assert rows[1].error is not None
    assert rows[1].error.message.startswith("<stdin>:3: ")


def test_standard_input_is_no_longer_than_the_limit_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    # Never closed: whoever reads on waits forever.
    os.write(writer, b'\n{"n": 1}\n\n{"n": 2}\n{"n"')
    with os.fdopen(writer, "wb"), os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        source = open_source(["-"], limit=2)
        assert [row.get("n") for row in source.rows(["n"])] == [1, 2]


def test_standard_input_gives_its_copy_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def num_open_files() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    before = num_open_files()
    pipe_in(monkeypatch, b'{"n": 1}\n')
    source = open_source(["-"])
    assert num_open_files() == before + 1
    del source
    assert num_open_files() == before


def test_standard_input_that_is_closed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match=r"^standard input is closed$"):
        open_source(["-"])
