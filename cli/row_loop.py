"""The way of the rows through the engine: pulled a window ahead, handed on as soon as they are done, in any order.

    source -> | oldest unfinished ... newest pulled | -> engine -> done, handed on at once
                        |                                 |
                        |                                 '-> out of memory or time: once more, after the others
                        '-> to be run alone: aside, and at the very end, one at a time

Memory is bounded by the window, whatever the length of the input. Nothing here knows a file, a tokenizer or a terminal.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from infer.engine.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from infer.cli.result import Record
    from infer.engine.request import Completion, Request
    from infer.io.row import Row

_ROWS_AT_ONCE = 64
"""Rendered and tokenised together, between two steps."""

_MOST_IN_A_PULL = 1024
"""Rows, after which the caller is asked whether to go on: they may all be errors, and none of them reach a step."""

_TRIED_TWICE = ("oom", "timeout")
"""Error codes of rows that may do better in a smaller batch."""


class EngineProtocol(Protocol):
    """What the loop needs of `infer.engine.engine.Engine`."""

    def add_request(self, request: Request) -> None: ...

    def step(self) -> list[Completion]: ...

    def recover(self, error: Exception) -> list[Completion]: ...


class RowHandler(Protocol):
    """What a row means: the job's part. What a row does wrong is no exception here, but its outcome."""

    def requests(self, rows: Sequence[Row]) -> list[Request | RequestError]:
        """What to ask for each row, by `row.index` as its id; an error for a row that cannot be asked. A row that is
        tried twice is asked for twice."""

    def begin(self, last_index: int) -> None:
        """Rows up to `last_index` are about to be asked for. Called often, for a few rows at a time."""

    def begin_alone(self, index: int) -> None:
        """This row is about to be asked for, with no other in the engine."""

    def finish(self, row: Row, outcome: Completion | RequestError) -> Record:
        """The output record of a row that is done. Called once a row."""

    def write(self, rows: list[tuple[Row, Record]]) -> None:
        """Take rows that are done, in the order in which they came to be."""


@dataclass(frozen=True, slots=True)
class Window:
    """How far the loop runs ahead. Tokens stand for bytes: what a row holds grows with its prompt."""

    max_num_seqs: int
    """Of the engine. Up to four times as many requests wait behind them."""
    max_waiting_tokens: int = 1 << 20
    """Prompts in the engine beyond which only `max_num_seqs` requests are kept there."""
    max_pending_rows: int = 1 << 14
    """From the oldest unfinished row, which may have been put aside, to the newest pulled one."""
    max_pending_tokens: int = 1 << 24
    """Of the prompts of unfinished rows."""


@dataclass(frozen=True, slots=True)
class RequestSize:
    """What a request asks of the cache."""

    num_tokens: int
    """Of the longest of its sequences, prompt and answer."""
    num_sequences: int


@dataclass(frozen=True, slots=True)
class _InEngine:
    row: Row
    num_tokens: int
    is_last_try: bool


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
        self._aside: deque[Row] = deque()
        """To be tried again."""
        self._aside_tokens = 0
        self._first_aside = 0
        """The least index among them; where some have left since, one of those."""
        self._unfinished: dict[int, _InEngine] = {}
        """By row index, the oldest first."""
        self._unfinished_tokens = 0
        self._last_index = -1
        """Of the newest row that was pulled."""
        self._is_exhausted = False
        self._done: list[tuple[Row, Record]] = []
        self._peeked: list[Request] = []

    def peek(self) -> RequestSize | None:
        """Pull the first window. Returns the most that its requests may come to; None without any."""
        self._peeked = self._pull()
        sizes = [(each.sampling_params, len(each.prompt_token_ids)) for each in self._peeked]
        if not sizes:
            return None
        return RequestSize(
            num_tokens=max(num_prompt_tokens + params.max_tokens for params, num_prompt_tokens in sizes),
            num_sequences=max(params.num_branches for params, _ in sizes),
        )

    def run(self, on_step: Callable[[], bool]) -> bool:
        """Work until the rows are through. After each step of the engine, and after rows that needed none, `on_step`
        says whether to go on; where it does not, what is unfinished is left so. Returns whether all rows are done."""
        while self._peeked or self._unfinished or not self._is_exhausted:
            requests, self._peeked = self._peeked or self._pull(), []
            self._add(requests)
            if not self._advance(on_step):
                return False
            if self._aside_is_full and not self._run_aside(on_step):
                return False
        return self._run_aside(on_step) and self._run_alone(on_step)

    def _run_aside(self, on_step: Callable[[], bool]) -> bool:
        """Try those again that failed for want of memory or time, a quarter as many at a time."""
        max_num_seqs = max(1, self._window.max_num_seqs // 4)
        while self._aside or self._unfinished:
            num_free = max(0, max_num_seqs - len(self._unfinished))
            rows = [self._aside.popleft() for _ in range(min(num_free, len(self._aside)))]
            self._add(self._ask(rows, is_last_try=True))
            if not self._advance(on_step):
                return False
        self._aside_tokens = 0
        return True

    def _run_alone(self, on_step: Callable[[], bool]) -> bool:
        while self._rows_alone:
            row = self._rows_alone.pop(0)
            self._handler.begin_alone(row.index)
            self._add(self._ask([row], is_last_try=True))
            while self._unfinished:
                if not self._advance(on_step):
                    return False
        self._hand_on()
        return True

    def _advance(self, on_step: Callable[[], bool]) -> bool:
        """One step, where there is anything to do in it, and on with what is done."""
        if self._unfinished:
            for completion in self._step():
                self._book(completion)
        self._hand_on()
        return on_step()

    def _step(self) -> list[Completion]:
        try:
            return self._engine.step()
        except Exception as error:
            return self._engine.recover(error)

    def _pull(self) -> list[Request]:
        """Requests for the next rows, as many as the window has room for; none while enough are waiting."""
        requests: list[Request] = []
        if len(self._unfinished) > 3 * self._window.max_num_seqs:
            return requests
        num_pulled = 0
        while num_pulled < _MOST_IN_A_PULL and self._has_room():
            rows = list(islice(self._rows, _ROWS_AT_ONCE))
            if not rows:
                self._is_exhausted = True
                break
            num_pulled += len(rows)
            self._last_index = rows[-1].index
            # Before they are rendered and tokenised: a row can bring the process down there, too.
            self._handler.begin(self._last_index)
            self._rows_alone += [row for row in rows if row.index in self._alone]
            requests += self._ask([row for row in rows if row.index not in self._alone])
            self._hand_on()
        return requests

    def _ask(self, rows: list[Row], *, is_last_try: bool = False) -> list[Request]:
        """The requests of rows, which are unfinished from here on; those without one are done."""
        requests: list[Request] = []
        for row, request in zip(rows, self._handler.requests(rows), strict=True):
            if isinstance(request, RequestError):
                self._done.append((row, self._handler.finish(row, request)))
                continue
            num_tokens = len(request.prompt_token_ids)
            self._unfinished[row.index] = _InEngine(row, num_tokens, is_last_try)
            self._unfinished_tokens += num_tokens
            requests.append(request)
        return requests

    def _has_room(self) -> bool:
        window = self._window
        oldest = next(iter(self._unfinished), self._last_index)
        if self._last_index - oldest >= window.max_pending_rows:
            return False
        if self._unfinished_tokens >= window.max_pending_tokens or self._aside_is_full:
            return False
        if len(self._unfinished) < window.max_num_seqs:
            return True
        return len(self._unfinished) < 5 * window.max_num_seqs and self._unfinished_tokens < window.max_waiting_tokens

    @property
    def _aside_is_full(self) -> bool:
        """Whether those put aside, which are unfinished, too, are to have their second try now."""
        window = self._window
        width = self._last_index - self._first_aside if self._aside else 0
        return width >= window.max_pending_rows or self._aside_tokens >= window.max_pending_tokens

    def _add(self, requests: list[Request]) -> None:
        for request in requests:
            try:
                self._engine.add_request(request)
            except RequestError as error:
                pending = self._leave(request.request_id)
                self._done.append((pending.row, self._handler.finish(pending.row, error)))

    def _book(self, completion: Completion) -> None:
        pending = self._leave(completion.request_id)
        if completion.error_code in _TRIED_TWICE and not pending.is_last_try:
            index = pending.row.index
            self._first_aside = min(self._first_aside, index) if self._aside else index
            self._aside.append(pending.row)
            self._aside_tokens += pending.num_tokens
        else:
            self._done.append((pending.row, self._handler.finish(pending.row, completion)))

    def _leave(self, row_index: int) -> _InEngine:
        pending = self._unfinished.pop(row_index)
        self._unfinished_tokens -= pending.num_tokens
        return pending

    def _hand_on(self) -> None:
        done, self._done = self._done, []
        if done:
            self._handler.write(done)
