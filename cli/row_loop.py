"""The way of the rows through the engine: pulled a window ahead, finished in any order, handed on in input order.

    source -> pending | oldest unfinished ... newest pulled | -> engine, in any order
                |
                `-> done, and everything before it too -> output

Memory is bounded by the window, whatever the length of the input. Nothing here knows a file, a tokenizer or a terminal.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from infer.engine.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from infer.cli.result import Record
    from infer.engine.request import Completion, Request
    from infer.io.row import Row

_ROWS_AT_ONCE = 64
"""Rendered and tokenised together, between two steps."""


class EngineProtocol(Protocol):
    """What the loop needs of `infer.engine.engine.Engine`."""

    def add_request(self, request: Request) -> None: ...

    def step(self) -> list[Completion]: ...


class RowHandler(Protocol):
    """What a row means: the job's part."""

    def requests(self, rows: Sequence[Row]) -> list[Request | RequestError]:
        """What to ask for each row, by `row.index` as its id; an error for a row that cannot be asked."""

    def finish(self, row: Row, outcome: Completion | RequestError) -> Record:
        """The output record of a row that is done. Called once a row."""

    def write(self, rows: list[tuple[Row, Record]]) -> None:
        """Take rows that are done, in input order."""


@dataclass(frozen=True, slots=True)
class Window:
    """How far the loop runs ahead. Tokens stand for bytes: what a row holds grows with its prompt and its answer."""

    max_num_seqs: int
    """Of the engine. Up to four times as many requests wait behind them."""
    max_waiting_tokens: int = 1 << 20
    """Prompts in the engine beyond which only `max_num_seqs` requests are kept there."""
    max_pending_rows: int = 1 << 14
    """From the oldest unfinished row to the newest pulled one."""
    max_pending_tokens: int = 1 << 24


@dataclass(slots=True, eq=False)
class _PendingRow:
    row: Row
    num_tokens: int = 0
    record: Record | None = None
    """None while the row is unfinished."""


@dataclass(frozen=True, slots=True)
class RequestSize:
    """What a request asks of the cache."""

    num_tokens: int
    """Of the longest of its sequences, prompt and answer."""
    num_sequences: int


class RowLoop:
    """Takes every row of `rows` to the engine and its record to the handler."""

    def __init__(self, rows: Iterator[Row], engine: EngineProtocol, handler: RowHandler, window: Window) -> None:
        self._rows = rows
        self._engine = engine
        self._handler = handler
        self._window = window
        self._pending: deque[_PendingRow] = deque()
        self._pending_tokens = 0
        self._unfinished: dict[int, _PendingRow] = {}
        """By row index."""
        self._unfinished_tokens = 0
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

    def run(self, on_step: Callable[[], None]) -> None:
        """Work until the rows are through, calling `on_step` after each step of the engine."""
        requests, self._peeked = self._peeked or self._pull(), []
        while requests or self._unfinished:
            for request in requests:
                self._add(request)
            if self._unfinished:
                for completion in self._engine.step():
                    self._finish(self._unfinished[completion.request_id], completion)
                on_step()
            self._hand_on()
            requests = self._pull()

    def _pull(self) -> list[Request]:
        """Requests for the next rows, as many as the window has room for; none while enough are waiting."""
        requests: list[Request] = []
        if len(self._unfinished) > 3 * self._window.max_num_seqs:
            return requests
        while self._has_room():
            rows = list(islice(self._rows, _ROWS_AT_ONCE))
            if not rows:
                break
            for row, request in zip(rows, self._handler.requests(rows), strict=True):
                pending = _PendingRow(row)
                self._pending.append(pending)
                if isinstance(request, RequestError):
                    pending.record = self._handler.finish(row, request)
                    continue
                pending.num_tokens = len(request.prompt_token_ids)
                self._pending_tokens += pending.num_tokens
                self._unfinished_tokens += pending.num_tokens
                self._unfinished[row.index] = pending
                requests.append(request)
            self._hand_on()
        return requests

    def _has_room(self) -> bool:
        window = self._window
        if len(self._pending) >= window.max_pending_rows or self._pending_tokens >= window.max_pending_tokens:
            return False
        if len(self._unfinished) < window.max_num_seqs:
            return True
        return len(self._unfinished) < 5 * window.max_num_seqs and self._unfinished_tokens < window.max_waiting_tokens

    def _add(self, request: Request) -> None:
        try:
            self._engine.add_request(request)
        except RequestError as error:
            self._finish(self._unfinished[request.request_id], error)

    def _finish(self, pending: _PendingRow, outcome: Completion | RequestError) -> None:
        del self._unfinished[pending.row.index]
        self._unfinished_tokens -= pending.num_tokens
        if not isinstance(outcome, RequestError):
            pending.num_tokens += outcome.num_output_tokens
            self._pending_tokens += outcome.num_output_tokens
        pending.record = self._handler.finish(pending.row, outcome)

    def _hand_on(self) -> None:
        """Give away the rows that are done and have no unfinished one before them."""
        done: list[tuple[Row, Record]] = []
        while self._pending and (record := self._pending[0].record) is not None:
            pending = self._pending.popleft()
            self._pending_tokens -= pending.num_tokens
            done.append((pending.row, record))
        if done:
            self._handler.write(done)
