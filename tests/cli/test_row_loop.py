"""The loop that takes rows through an engine: window, errors, second tries, rows that run alone."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from echo_engine import EchoEngine

from infer.cli.row_loop import RowLoop
from infer.cli.row_window import RequestSize, Window
from infer.engine.errors import RequestError
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.io.row import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from infer.cli.result import Record
    from infer.engine.request import Completion

LENGTHS = (1, 40, 2, 7, 0, 200, 3, 1)
"""Of the prompts, over and over; the row without a prompt is an error."""


DRAWN, GREEDY = (SamplingParams(temperature=temperature, max_tokens=100) for temperature in (1.0, 0.0))


class Rows:
    """Rows numbered from 0, and a handler that notes what becomes of them, and that all is said in time."""

    def __init__(self, num_rows: int, lengths: Sequence[int] = LENGTHS, params: SamplingParams = DRAWN) -> None:
        self._params = params
        self._num_rows = num_rows
        self._lengths = lengths
        self.num_pulled = 0
        self.begun = -1
        self.alone: list[int] = []
        self.finished: list[int] = []
        self.equal: list[int] = []
        """Of these, those that got the answer of another."""
        self.written: list[tuple[int, object]] = []
        self.most_pending = 0
        self.widest = 0

    def __iter__(self) -> Iterator[Row]:
        written: set[int] = set()
        oldest = 0
        for index in range(self._num_rows):
            self.num_pulled += 1
            self.most_pending = max(self.most_pending, self.num_pulled - len(self.written))
            written.update(row for row, _ in self.written[len(written) :])
            while oldest in written:
                oldest += 1
            self.widest = max(self.widest, index - oldest)
            yield Row(index, None)

    def requests(self, rows: Sequence[Row]) -> list[Request | RequestError]:
        for row in rows:
            assert row.index <= self.begun or row.index in self.alone, f"row {row.index} was not announced"
        lengths = [self._lengths[row.index % len(self._lengths)] for row in rows]
        return [
            Request(row.index, (3,) * length, self._params, seed=row.index)
            if length
            else RequestError("empty_prompt", "the prompt is empty")
            for row, length in zip(rows, lengths, strict=True)
        ]

    def begin(self, last_index: int) -> None:
        assert last_index >= self.begun
        self.begun = last_index

    def begin_alone(self, index: int) -> None:
        self.alone.append(index)

    def finish(self, row: Row, outcome: Completion | RequestError) -> Record:
        self.finished.append(row.index)
        if isinstance(outcome, RequestError):
            return {"outcome": outcome.code}
        return {"outcome": outcome.error_code or len(outcome.token_ids)}

    def finish_equal(self, row: Row, outcome: Completion | RequestError) -> Record:
        self.equal.append(row.index)
        return self.finish(row, outcome)

    def write(self, rows: list[tuple[Row, Record]]) -> None:
        assert rows
        self.written += [(row.index, record["outcome"]) for row, record in rows]


def make_loop(rows: Rows, engine: EchoEngine, alone: Collection[int] = (), **window: Any) -> RowLoop:
    return RowLoop(iter(rows), engine, rows, Window(max_num_seqs=4, **window), alone)


def go_on() -> bool:
    return True


def counting(steps: Iterator[int]) -> Callable[[], bool]:
    return lambda: next(steps) >= 0


def outcome(length: int, *, max_model_len: int = 512) -> object:
    if length == 0:
        return "empty_prompt"
    return "prompt_too_long" if length >= max_model_len else min(length, 100)


def test_rows_are_handed_on_once_each_as_they_finish():
    rows, steps, engine = Rows(1000), count(), EchoEngine()
    assert make_loop(rows, engine).run(counting(steps))
    assert sorted(rows.written) == [(index, outcome(LENGTHS[index % len(LENGTHS)])) for index in range(1000)]
    assert [index for index, _ in rows.written] == rows.finished != sorted(rows.finished)
    # 7 rows of 8 have 154 tokens between them, the engine takes a step for four tokens at best.
    assert next(steps) >= 1000 // 8 * 154 / 4


def test_row_that_is_done_does_not_wait_for_a_slow_one_before_it():
    rows, written = Rows(3, lengths=(100, 1, 1)), []
    make_loop(rows, EchoEngine()).run(lambda: written.append(len(rows.written)) is None)
    assert written[0] == 2
    assert [index for index, _ in rows.written] == [1, 2, 0]


def test_refused_request_is_a_row_like_any_other():
    rows = Rows(64)
    make_loop(rows, EchoEngine(max_model_len=40)).run(go_on)
    expected = [(index, outcome(LENGTHS[index % len(LENGTHS)], max_model_len=40)) for index in range(64)]
    assert sorted(rows.written) == expected


def test_too_long_row_between_short_ones_leaves_them_aligned():
    rows = Rows(3, lengths=(5, 600, 7))
    make_loop(rows, EchoEngine()).run(go_on)
    assert sorted(rows.written) == [(0, 5), (1, "prompt_too_long"), (2, 7)]


@pytest.mark.parametrize("length", [0, 600])
def test_input_of_errors_only_comes_through(length):
    rows, engine = Rows(1000, lengths=(length,)), EchoEngine()
    make_loop(rows, engine, max_pending_rows=100).run(go_on)
    assert rows.written == [(index, outcome(length)) for index in range(1000)]
    assert rows.most_pending <= 100 + 64
    assert engine.together == []


def test_stop_is_asked_for_though_no_row_ever_reaches_the_engine():
    rows = Rows(100_000, lengths=(0,))
    assert not make_loop(rows, EchoEngine()).run(lambda: False)
    assert len(rows.written) == rows.num_pulled < 5000


def test_empty_input_is_done_at_once():
    rows = Rows(0)
    loop = make_loop(rows, EchoEngine())
    assert loop.peek() is None
    assert loop.run(lambda: pytest.fail("there was nothing to do"))
    assert rows.written == []


def test_peek_tells_the_longest_request_of_the_first_window_and_loses_no_row():
    rows = Rows(5000)
    loop = make_loop(rows, EchoEngine())
    assert loop.peek() == RequestSize(num_tokens=200 + 100, num_sequences=1)
    assert rows.num_pulled < 2000
    loop.run(go_on)
    assert sorted(index for index, _ in rows.written) == list(range(5000))


def test_no_row_is_asked_for_unannounced():
    # `Rows` looks at each of them: also before it is tokenised, where it can bring the process down.
    rows = Rows(5000)
    loop = make_loop(rows, EchoEngine(), alone=(3, 4000))
    loop.peek()
    assert 0 <= rows.begun < 2000
    assert loop.run(go_on)
    assert rows.begun == 4999
    assert len(rows.written) == 5000


@pytest.mark.parametrize("order", ["plan", "input"])
def test_no_more_requests_wait_in_the_engine_than_a_step_can_begin(order):
    rows, engine = Rows(1000, lengths=(1, 2, 3)), EchoEngine()
    make_loop(rows, engine, order=order).run(go_on)
    assert engine.most_unfinished <= 2 * 4


def test_one_slow_row_holds_back_a_bounded_number():
    rows = Rows(2000, lengths=(100, *[1] * 1999))
    make_loop(rows, EchoEngine(), max_pending_rows=100).run(go_on)
    assert rows.widest <= 100 + 64
    assert sorted(rows.written) == [(index, 1 if index else 100) for index in range(2000)]


def test_unfinished_prompts_are_bounded_in_tokens():
    rows, engine = Rows(300, lengths=(400,)), EchoEngine()
    make_loop(rows, engine, max_pending_tokens=1).run(go_on)
    assert engine.most_unfinished <= 64
    assert len(rows.written) == 300


def test_stopped_loop_leaves_unfinished_rows_unfinished():
    rows, steps = Rows(1000, lengths=(10,)), count(1)
    assert not make_loop(rows, EchoEngine()).run(lambda: next(steps) < 25)
    assert next(steps) == 26
    assert len(rows.written) == len(rows.finished) == 2 * 4


@pytest.mark.parametrize("code", ["oom", "timeout"])
def test_row_without_memory_or_time_is_tried_once_more_after_the_others(code):
    engine = EchoEngine(failures={3: [code], 5: [code, code], 7: ["internal"]})
    rows = Rows(40, lengths=(2,))
    assert make_loop(rows, engine).run(go_on)
    assert sorted(rows.written) == [(i, {5: code, 7: "internal"}.get(i, 2)) for i in range(40)]
    assert {index for index, _ in rows.written[-2:]} == {3, 5}
    assert len(rows.finished) == 40, "finished twice"


def test_second_tries_run_a_quarter_as_many_at_a_time():
    engine = EchoEngine(max_num_seqs=8, failures={index: ["oom"] for index in range(20)})
    rows = Rows(20, lengths=(3,))
    assert RowLoop(iter(rows), engine, rows, Window(max_num_seqs=8)).run(go_on)
    assert sorted(rows.written) == [(index, 3) for index in range(20)]
    first_try = engine.together.index(frozenset(range(16, 20)))
    assert max(map(len, engine.together[: first_try + 1])) == 8
    assert max(map(len, engine.together[first_try + 1 :])) == 2


def test_rows_put_aside_are_bounded():
    rows = Rows(1000, lengths=(1,))
    engine = EchoEngine(failures={index: ["oom"] for index in range(1000)})
    assert make_loop(rows, engine, max_pending_rows=100).run(go_on)
    assert sorted(rows.written) == [(index, 1) for index in range(1000)]
    assert rows.most_pending <= 100 + 64 + 5 * 4 + 64


def test_row_put_aside_holds_back_a_bounded_number():
    rows = Rows(2000, lengths=(1,))
    engine = EchoEngine(failures={3: ["oom"], 700: ["timeout"]})
    assert make_loop(rows, engine, max_pending_rows=100).run(go_on)
    assert sorted(rows.written) == [(index, 1) for index in range(2000)]
    assert rows.widest <= 100 + 64


def test_suspects_run_last_and_one_at_a_time():
    rows, engine = Rows(100, lengths=(2,)), EchoEngine(failures={8: ["oom"], 20: ["timeout", "timeout"]})
    assert make_loop(rows, engine, alone={20, 4, 90}).run(go_on)
    assert rows.alone == [4, 20, 90]
    assert sorted(rows.written) == [(index, "timeout" if index == 20 else 2) for index in range(100)]
    assert [index for index, _ in rows.written[-4:]] == [8, 4, 20, 90]
    assert [step for step in engine.together if step & {4, 20, 90}] == [*[{4}] * 2, {20}, *[{90}] * 2]


def test_suspect_is_announced_before_it_is_known_to_have_no_prompt():
    rows = Rows(8)
    assert make_loop(rows, EchoEngine(), alone={4, 5}).run(go_on)
    assert rows.alone == [4, 5]
    assert sorted(rows.written) == [(index, outcome(LENGTHS[index])) for index in range(8)]


def test_step_that_raises_is_the_engines_to_recover_from():
    errors = {1: RuntimeError("a"), 7: MemoryError()}
    rows, engine = Rows(100, lengths=(1, 2, 3)), EchoEngine(raising=errors)
    assert make_loop(rows, engine).run(go_on)
    assert engine.recovered == list(errors.values())
    assert sorted(rows.written) == [(index, index % 3 + 1) for index in range(100)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_what_is_no_exception_of_a_step_ends_the_loop(error):
    rows, engine = Rows(100), EchoEngine(raising={2: error})
    with pytest.raises(type(error)):
        make_loop(rows, engine).run(go_on)
    assert engine.recovered == []


@pytest.mark.parametrize("method", ["write", "begin", "begin_alone"])
def test_storage_that_fails_ends_the_loop(method):
    class Failing(Rows):
        pass

    def fail(self: Rows, *_: object) -> None:
        raise OSError("disk full")

    setattr(Failing, method, fail)
    rows, engine = Failing(100), EchoEngine()
    with pytest.raises(OSError, match="disk full"):
        make_loop(rows, engine, alone={5}).run(go_on)
    assert engine.recovered == []


def test_rows_are_written_while_the_run_goes_on():
    rows, written = Rows(1000, lengths=(1, 2, 3)), []
    make_loop(rows, EchoEngine()).run(lambda: written.append(len(rows.written)) is None)
    assert written[len(written) // 2] >= 400


def test_equal_rows_are_computed_once_and_all_answered():
    rows, engine = Rows(200, lengths=(1, 2, 0, 5, 600), params=GREEDY), EchoEngine()
    assert make_loop(rows, engine).run(go_on)
    lengths = {0: 1, 1: 2, 2: "empty_prompt", 3: 5, 4: "prompt_too_long"}
    assert sorted(rows.written) == [(index, lengths[index % 5]) for index in range(200)]
    assert frozenset.union(*engine.together) == {0, 1, 3}
    assert sorted(rows.equal) == [index for index in range(5, 200) if index % 5 != 2]
    assert len(rows.finished) == 200


def test_rows_are_all_computed_as_they_come_where_nothing_is_planned():
    rows, engine = Rows(40, lengths=(3,), params=GREEDY), EchoEngine()
    assert make_loop(rows, engine, order="input").run(go_on)
    assert [index for index, _ in rows.written] == list(range(40))
    assert frozenset.union(*engine.together) == set(range(40))
    assert rows.equal == []


@pytest.mark.parametrize("codes", [["oom"], ["oom", "timeout"], ["internal"]])
def test_equal_rows_fail_and_are_tried_again_as_one(codes):
    rows, engine = Rows(10, lengths=(3,), params=GREEDY), EchoEngine(failures={0: codes})
    assert make_loop(rows, engine).run(go_on)
    expected = 3 if codes == ["oom"] else codes[-1]
    assert sorted(rows.written) == [(index, expected) for index in range(10)]
    assert set(engine.together) == {frozenset({0})}
    assert len(rows.finished) == 10


def test_rows_that_wait_for_one_put_aside_do_not_keep_it_from_its_second_try():
    rows, engine = Rows(500, lengths=(100,), params=GREEDY), EchoEngine(failures={0: ["oom"]})
    assert make_loop(rows, engine, max_pending_tokens=10_000).run(go_on)
    assert sorted(rows.written) == [(index, 100) for index in range(500)]
    assert rows.most_pending <= 100 + 64


def test_no_more_is_let_go_than_a_step_takes_while_better_company_may_come():
    rows, engine = Rows(2000, lengths=(400,)), EchoEngine()
    steps = count()
    # Read 64 at a time, until 32,768 tokens are there.
    RowLoop(iter(rows), engine, rows, Window(max_num_seqs=64, max_step_tokens=1000)).run(lambda: next(steps) < 0)
    # All of them are alike: the first has 400 tokens to compute, the others what is behind the last full block.
    assert len(engine.together[0]) == 1 + (1000 - 400 + 15) // 16
    assert rows.num_pulled == 128


def test_engine_gets_all_that_it_can_take_once_nothing_more_may_come():
    rows, engine = Rows(64, lengths=(400,)), EchoEngine(max_num_seqs=64)
    RowLoop(iter(rows), engine, rows, Window(max_num_seqs=64, max_step_tokens=1000)).run(lambda: False)
    assert len(engine.together[0]) == 64
