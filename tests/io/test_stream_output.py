"""Rows reach a stream in their order, each as soon as all before it are there."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from infer.io.row import Row
from infer.io.schema import OutputSchema
from infer.io.stream_output import StreamOutput

RESULTS = pa.schema([("response", pa.string()), ("_row", pa.int64())])


class NotingStream(io.BytesIO):
    """Knows what of it was flushed."""

    flushed = b""

    def flush(self) -> None:
        self.flushed = self.getvalue()


def rows(*indices: int) -> list[tuple[Row, dict[str, object]]]:
    return [(Row(index, None), {"response": f"é{index}", "_row": index}) for index in indices]


def line(index: int) -> str:
    return f'{{"response":"é{index}","_row":{index}}}\n'


@pytest.fixture
def stream() -> NotingStream:
    return NotingStream()


@pytest.fixture
def output(stream: NotingStream) -> StreamOutput:
    return StreamOutput(stream, OutputSchema(pa.schema([]), RESULTS))


def test_rows_wait_for_those_before_them(stream: NotingStream, output: StreamOutput) -> None:
    expected = ""
    for added, written in (([2, 1], []), ([0], [0, 1, 2]), ([5, 3], [3]), ([], []), ([4], [4, 5]), ([6], [6])):
        output.add(rows(*added))
        expected += "".join(map(line, written))
        assert stream.flushed.decode() == expected


def test_row_that_was_written_is_no_longer_held(output: StreamOutput) -> None:
    output.add(rows(*range(1, 100)))
    assert len(output._held) == 99
    output.add(rows(0))
    assert output._held == {}


def test_rows_have_their_kept_columns(stream: NotingStream) -> None:
    kept = pa.schema([("x", pa.int64())])
    output = StreamOutput(stream, OutputSchema(kept, RESULTS, "r_"))
    output.add(rows(0))
    assert stream.getvalue().decode() == '{"x":null,"r_response":"é0","r__row":0}\n'
