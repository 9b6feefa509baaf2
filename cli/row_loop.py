"""The way of the rows through the engine: read ahead of it, handed on as soon as they are done, in any order.

    source -> row_window: equal ones once, in planned order -> engine -> done, handed on at once
                |                                                |
                |                                                '-> out of memory or time: once more, after the others
                '-> to be run alone: aside, and at the very end, one at a time

Memory is bounded by the window, whatever the length of the input. Nothing here knows a file, a tokenizer or a terminal.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from infer.cli.row_window import RowWindow, SharedRequest
from infer.engine.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from infer.cli.result import Record
    from infer.cli.row_window import RequestSize, Window
    from infer.engine.request import Completion, Request
    from infer.io.row import Row

_ROWS_AT_ONCE = 64
"""Rendered and tokenised together."""

_TOKENS_BETWEEN_STEPS = 1 << 15
"""Read ahead, where the engine has something to do: the model has run for much longer to compute as many."""

_MOST_AT_ONCE = 1024
"""Rows, after which the caller is asked whether to go on: they may all be errors, and none of them reach a step."""

_TRIED_TWICE = ("oom", "timeout")
"""Error codes of rows that may do better in a smaller batch."""


class EngineProtocol(Protocol):
    """What the loop needs of `infer.engine.engine.Engine`."""

    @property
    def num_waiting(self) -> int:
        """Sequences that no step has begun, or that have to wait again."""

    def add_request(self, request: Request) -> None: ...

    def step(self) -> list[Completion]: ...

    def recover(self, error: Exception) -> list[Completion]: ...


class RowHandler(Protocol):
    """What a row means: the job's part. What a row does wrong is no exception here, but its outcome."""

    def requests(self, rows: Sequence[Row]) -> list[Request | RequestError]:
        """What to ask for each row, by `row.index` as its id; an error for a row that cannot be asked."""

    def begin(self, last_index: int) -> None:
        """Rows up to `last_index` are about to be asked for. Called often, for a few rows at a time."""

    def begin_alone(self, index: int) -> None:
        """This row is about to be asked for, with no other in the engine."""

    def finish(self, row: Row, outcome: Completion | RequestError) -> Record:
        """The output record of a row that is done. Called once a row, this or `finish_equal`."""

    def finish_equal(self, row: Row, outcome: Completion | RequestError) -> Record:
        """The same, for a row that gets what another one has come to: nothing was computed for it."""

    def write(self, rows: list[tuple[Row, Record]]) -> None:
        """Take rows that are done, in the order in which they came to be."""


class RowLoop:
    """Takes every row of `rows` to the engine and its record to the handler.

    `alone` are the indices of rows that may do harm to others, or to the process.
    """

    def __init__(
        self,
        rows: Iterator[Row],
        engine: EngineProtocol,
        handler: RowHandler,
        window: Window,
        alone: Collection[int] = frozenset(),
    ) -> None:
        self._rows = rows
        self._engine = engine
        self._handler = handler
        self._window = window
        self._alone = alone
        self._rows_alone: list[Row] = []
        self._ahead = RowWindow(window)
        self._in_engine: dict[int, SharedRequest] = {}
        """By request id."""
        self._fed_tokens: deque[int] = deque(maxlen=window.max_num_seqs)
        """Of the last requests that the engine was given, the tokens that it has to compute."""
        self._aside: deque[SharedRequest] = deque()
        """To be tried again."""
        self._unfinished: dict[int, int] = {}
        """Tokens of the prompt by row index, the oldest first: of all that were read and are not done."""
        self._unfinished_tokens = 0
        self._last_index = -1
        """Of the newest row that was read."""
        self._is_exhausted = False
        self._done: list[tuple[Row, Record]] = []

    def peek(self) -> RequestSize | None:
        """Read the first rows. Returns the most that their requests may come to; None without any."""
        self._read_ahead()
        return self._ahead.largest()

    def run(self, on_step: Callable[[], bool]) -> bool:
        """Work until the rows are through. After each step of the engine, and after rows that needed none, `on_step`
        says whether to go on; where it does not, what is unfinished is left so. Returns whether all rows are done."""
        while self._in_engine or len(self._ahead) or not self._is_exhausted:
            self._read_ahead()
            self._feed()
            if not self._advance(on_step):
                return False
            if self._waits_for_aside and not self._run_aside(on_step):
                return False
        return self._run_aside(on_step) and self._run_alone(on_step)

    def _run_aside(self, on_step: Callable[[], bool]) -> bool:
        """Try those again that failed for want of memory or time, a quarter as many at a time."""
        max_num_seqs = max(1, self._window.max_num_seqs // 4)
        while self._aside or self._in_engine:
            while self._aside and len(self._in_engine) < max_num_seqs:
                self._add(self._aside.popleft())
            if not self._advance(on_step):
                return False
        return True

    def _run_alone(self, on_step: Callable[[], bool]) -> bool:
        while self._rows_alone:
            row = self._rows_alone.pop(0)
            self._handler.begin_alone(row.index)
            for _, request in self._ask([row]):
                self._add(replace(SharedRequest.of(row, request), is_last_try=True))
            while self._in_engine:
                if not self._advance(on_step):
                    return False
        self._hand_on()
        return True

    def _advance(self, on_step: Callable[[], bool]) -> bool:
        """One step, where there is anything to do in it, and on with what is done."""
        if self._in_engine:
            for completion in self._step():
                self._book(completion)
        self._hand_on()
        return on_step()

    def _step(self) -> list[Completion]:
        try:
            return self._engine.step()
        except Exception as error:
            return self._engine.recover(error)

    def _read_ahead(self) -> None:
        """Read some rows, as far as there is room for them."""
        num_tokens = 0
        for _ in range(_MOST_AT_ONCE // _ROWS_AT_ONCE):
            if not self._may_read or num_tokens >= _TOKENS_BETWEEN_STEPS:
                return
            num_tokens += self._read()

    def _read(self) -> int:
        """Read the next rows. Returns how many tokens their prompts have."""
        rows = list(islice(self._rows, _ROWS_AT_ONCE))
        if not rows:
            self._is_exhausted = True
            self._ahead.end()
            return 0
        self._last_index = rows[-1].index
        # Before they are rendered and tokenised: a row can bring the process down there, too.
        self._handler.begin(self._last_index)
        self._rows_alone += [row for row in rows if row.index in self._alone]
        requests = self._ask([row for row in rows if row.index not in self._alone])
        for row, request in requests:
            self._ahead.add(row, request)
        self._hand_on()
        return sum(len(request.prompt_token_ids) for _, request in requests)

    def _ask(self, rows: list[Row]) -> list[tuple[Row, Request]]:
        """Rows with their requests, unfinished from here on; those without one are done."""
        requests: list[tuple[Row, Request]] = []
        for row, request in zip(rows, self._handler.requests(rows), strict=True):
            if isinstance(request, RequestError):
                self._done.append((row, self._handler.finish(row, request)))
                continue
            self._unfinished[row.index] = len(request.prompt_token_ids)
            self._unfinished_tokens += len(request.prompt_token_ids)
            requests.append((row, request))
        return requests

    @property
    def _may_read(self) -> bool:
        """Whether there are rows left, and room for some."""
        window = self._window
        oldest = next(iter(self._unfinished), self._last_index)
        return not (
            self._is_exhausted
            or self._ahead.is_full
            or self._last_index - oldest >= window.max_pending_rows
            or self._unfinished_tokens >= window.max_pending_tokens
        )

    @property
    def _waits_for_aside(self) -> bool:
        """Whether nothing goes on before those put aside, which are unfinished, too, have had their second try."""
        return bool(self._aside) and not self._in_engine and not len(self._ahead) and not self._may_read

    def _feed(self) -> None:
        """Let the engine have what the next step can begin. While rows may still come that belong between those that
        wait here, no more than that."""
        is_growing = self._ahead.is_open and self._may_read
        num_waiting = self._engine.num_waiting
        num_new_tokens = sum(islice(reversed(self._fed_tokens), num_waiting))
        while num_waiting < self._window.max_num_seqs:
            if is_growing and num_new_tokens >= self._window.max_step_tokens:
                return
            shared = self._ahead.take()
            if shared is None:
                return
            if self._add(shared):
                num_waiting += 1
                num_new_tokens += shared.num_new_tokens
                self._fed_tokens.append(shared.num_new_tokens)

    def _add(self, shared: SharedRequest) -> bool:
        """Whether the engine has taken it."""
        try:
            self._engine.add_request(shared.request())
        except RequestError as error:
            self._finish(shared, error)
            return False
        self._in_engine[shared.request_id] = shared
        return True

    def _book(self, completion: Completion) -> None:
        shared = self._in_engine.pop(completion.request_id)
        if completion.error_code in _TRIED_TWICE and not shared.is_last_try:
            shared.is_last_try = True
            self._aside.append(shared)
        else:
            self._finish(shared, completion)

    def _finish(self, shared: SharedRequest, outcome: Completion | RequestError) -> None:
        self._ahead.forget(shared)
        first, *others = shared.rows
        self._done.append((first, self._handler.finish(first, outcome)))
        self._done += [(row, self._handler.finish_equal(row, outcome)) for row in others]
        for row in shared.rows:
            self._unfinished_tokens -= self._unfinished.pop(row.index)

    def _hand_on(self) -> None:
        done, self._done = self._done, []
        if done:
            self._handler.write(done)
