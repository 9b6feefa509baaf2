"""The loop that takes rows through an engine: order, window, errors."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from echo_engine import EchoEngine

from infer.cli.row_loop import RequestSize, RowLoop, Window
from infer.engine.errors import RequestError
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.io.row import Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from infer.cli.result import Record
    from infer.engine.request import Completion

LENGTHS = (1, 40, 2, 7, 0, 200, 3, 1)
"""Of the prompts, over and over; the row without a prompt is an error."""


class Rows:
    """Rows numbered from 0, and a handler that notes what becomes of them."""

    def __init__(self, num_rows: int, lengths: Sequence[int] = LENGTHS) -> None:
        self._num_rows = num_rows
        self._lengths = lengths
        self.num_pulled = 0
        self.finished: list[int] = []
        self.written: list[tuple[int, object]] = []
        self.most_pending = 0

    def __iter__(self) -> Iterator[Row]:
        for index in range(self._num_rows):
            self.num_pulled += 1
            self.most_pending = max(self.most_pending, self.num_pulled - len(self.written))
            yield Row(index, None)

    def requests(self, rows: Sequence[Row]) -> list[Request | RequestError]:
        lengths = [self._lengths[row.index % len(self._lengths)] for row in rows]
        return [
            Request(row.index, (3,) * length, SamplingParams(max_tokens=100))
            if length
            else RequestError("empty_prompt", "the prompt is empty")
            for row, length in zip(rows, lengths, strict=True)
        ]

    def finish(self, row: Row, outcome: Completion | RequestError) -> Record:
        self.finished.append(row.index)
        return {"outcome": outcome.code if isinstance(outcome, RequestError) else len(outcome.token_ids)}

    def write(self, rows: list[tuple[Row, Record]]) -> None:
        self.written += [(row.index, record["outcome"]) for row, record in rows]


def make_loop(rows: Rows, engine: EchoEngine, **window: int) -> RowLoop:
    return RowLoop(iter(rows), engine, rows, Window(max_num_seqs=4, **window))


def outcome(length: int, *, max_model_len: int = 512) -> object:
    if length == 0:
        return "empty_prompt"
    return "prompt_too_long" if length >= max_model_len else min(length, 100)


def test_rows_come_out_once_each_in_input_order_though_they_finish_in_another():
    rows, steps = Rows(1000), count()
    make_loop(rows, EchoEngine()).run(lambda: next(steps))
    assert rows.written == [(index, outcome(LENGTHS[index % len(LENGTHS)])) for index in range(1000)]
    assert rows.finished != sorted(rows.finished)
    assert sorted(rows.finished) == list(range(1000))
    # 7 rows of 8 have 154 tokens between them, the engine takes a step for four tokens at best.
    assert next(steps) >= 1000 // 8 * 154 / 4


def test_refused_request_is_a_row_like_any_other():
    rows = Rows(64)
    make_loop(rows, EchoEngine(max_model_len=40)).run(lambda: None)
    assert rows.written == [(index, outcome(LENGTHS[index % len(LENGTHS)], max_model_len=40)) for index in range(64)]


@pytest.mark.parametrize("length", [0, 600])
def test_input_of_errors_only_comes_through(length):
    rows = Rows(1000, lengths=(length,))
    make_loop(rows, EchoEngine(), max_pending_rows=100).run(lambda: pytest.fail("there was nothing to do in a step"))
    assert rows.written == [(index, outcome(length)) for index in range(1000)]
    assert rows.most_pending <= 100 + 64


def test_empty_input_is_done_at_once():
    rows = Rows(0)
    loop = make_loop(rows, EchoEngine())
    assert loop.peek() is None
    loop.run(lambda: pytest.fail("there was nothing to do in a step"))
    assert rows.written == []


def test_peek_tells_the_longest_request_of_the_first_window_and_loses_no_row():
    rows = Rows(500)
    loop = make_loop(rows, EchoEngine())
    assert loop.peek() == RequestSize(num_tokens=200 + 100, num_sequences=1)
    assert rows.num_pulled < 100
    loop.run(lambda: None)
    assert [index for index, _ in rows.written] == list(range(500))


def test_no_more_requests_wait_in_the_engine_than_four_times_those_that_run():
    rows, engine = Rows(1000, lengths=(1, 2, 3)), EchoEngine()
    make_loop(rows, engine).run(lambda: None)
    # Pulled 64 at a time.
    assert engine.most_unfinished <= 5 * 4 + 64


def test_long_prompts_are_pulled_more_sparingly():
    rows, engine = Rows(300, lengths=(400,)), EchoEngine()
    make_loop(rows, engine, max_waiting_tokens=1000).run(lambda: None)
    assert engine.most_unfinished <= 4 + 64
    assert len(rows.written) == 300


@pytest.mark.parametrize("window", [{"max_pending_rows": 100}, {"max_pending_tokens": 100}])
def test_one_slow_row_holds_back_a_bounded_number(window):
    rows = Rows(2000, lengths=(100, *[1] * 1999))
    make_loop(rows, EchoEngine(), **window).run(lambda: None)
    assert rows.most_pending <= 100 + 64
    assert rows.written == [(index, 1 if index else 100) for index in range(2000)]


def test_rows_are_written_while_the_run_goes_on():
    rows, written = Rows(1000, lengths=(1, 2, 3)), []
    make_loop(rows, EchoEngine()).run(lambda: written.append(len(rows.written)))
    assert written[len(written) // 2] >= 400
