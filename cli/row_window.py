"""The rows between the input and the engine: equal ones as one request, in the order in which they are to run.

    read -> | next window, growing | -> planned -> | this window | -> engine

A window that is not full yet is planned again when what was read since is as much as is left of it: so the first rows
run at once, and still few prefixes are computed twice. From a full window to the next nothing is drained: the plan of
the next begins with what shares most with the last prompts of the one before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from infer.engine.planner import Goal, num_prompt_tokens, pack_prompt, plan_order, unpack_prompt
from infer.engine.request import Request

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from infer.engine.sampling_params import SamplingParams
    from infer.io.row import Row

Order = Literal["plan", "input"]


@dataclass(frozen=True, slots=True)
class Window:
    """How far rows are read ahead. Tokens stand for bytes: what a row holds grows with its prompt."""

    max_num_seqs: int
    """Of the engine. Not many more requests wait there."""
    order: Order = "plan"
    max_step_tokens: int = 2048
    """Of the engine: what is let go while better company may still be read."""
    block_size: int = 16
    """Of the engine's cache: what prompts share counts in full blocks."""
    max_window_tokens: int = 1_000_000
    """Of prompts that are planned together."""
    max_pending_rows: int = 1 << 15
    """From the oldest unfinished row, which may have been put aside, to the newest that was read; two windows."""
    max_pending_tokens: int = 1 << 24
    """Of the prompts of unfinished rows."""

    @property
    def max_window_rows(self) -> int:
        return max(1, self.max_pending_rows // 2)


@dataclass(frozen=True, slots=True)
class RequestSize:
    """What a request asks of the cache."""

    num_tokens: int
    """Of the longest of its sequences, prompt and answer."""
    num_sequences: int


@dataclass(slots=True, eq=False)
class SharedRequest:
    """What one or several rows ask of the engine; all of them get its answer."""

    rows: list[Row]
    """The first one's index is the request's id."""
    prompt: bytes
    """Packed: a window holds many."""
    sampling_params: SamplingParams
    seed: int
    priority: int
    num_new_tokens: int = field(init=False)
    """Of the prompt, behind what those planned before it have left in the cache."""
    is_last_try: bool = False

    def __post_init__(self) -> None:
        self.num_new_tokens = self.num_tokens

    @classmethod
    def of(cls, row: Row, request: Request) -> SharedRequest:
        prompt = pack_prompt(request.prompt_token_ids)
        return cls([row], prompt, request.sampling_params, request.seed, request.priority)

    @property
    def request_id(self) -> int:
        return self.rows[0].index

    @property
    def num_tokens(self) -> int:
        return num_prompt_tokens(self.prompt)

    @property
    def key(self) -> Hashable:
        """Equal for requests with the same answer: where it is drawn, the seed has its say."""
        params = self.sampling_params
        seed = None if params.is_deterministic else self.seed
        return self.prompt, params, seed, self.priority

    def request(self) -> Request:
        return Request(
            self.request_id, unpack_prompt(self.prompt), self.sampling_params, self.seed, priority=self.priority
        )


class RowWindow:
    """Takes requests as their rows are read, and gives them in the order in which they are to run."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._is_planning = window.order == "plan"
        self._read: list[SharedRequest] = []
        """Of the next window, or to be planned with what is left of this one."""
        self._num_read_tokens = 0
        self._planned: deque[SharedRequest] = deque()
        self._num_planned_tokens = 0
        self._num_window_tokens = self._num_window_rows = 0
        """Of this window, those that have left it included."""
        self._is_last = False
        """Nothing more will be read."""
        self._is_final = False
        """That is known to the plan."""
        self._by_key: dict[Hashable, SharedRequest] = {}
        """Those that have no answer yet, here and in the engine."""
        self._last_taken: deque[bytes] = deque(maxlen=window.max_num_seqs)
        """Prompts: the cache knows the latest best."""

    def __len__(self) -> int:
        """Requests."""
        return len(self._read) + len(self._planned)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read before some have left."""
        if not self._is_planning:
            return len(self) >= self._window.max_num_seqs
        return not self._is_within(self._num_read_tokens, len(self._read))

    @property
    def is_open(self) -> bool:
        """Whether what is read now is still planned together with what is to run next."""
        if not self._is_planning or self._is_last:
            return False
        return self._has_room_for_read

    def add(self, row: Row, request: Request) -> None:
        """Take in what a row asks. Where an equal request has no answer yet, the row waits for that one's."""
        shared = SharedRequest.of(row, request)
        if self._is_planning:
            first = self._by_key.setdefault(shared.key, shared)
            if first is not shared:
                first.rows.append(row)
                return
        self._read.append(shared)
        self._num_read_tokens += shared.num_tokens

    def largest(self) -> RequestSize | None:
        """The most that any request here comes to; None without any."""
        requests = [*self._planned, *self._read]
        if not requests:
            return None
        return RequestSize(
            num_tokens=max(each.num_tokens + each.sampling_params.max_tokens for each in requests),
            num_sequences=max(each.sampling_params.num_branches for each in requests),
        )

    def end(self) -> None:
        """Nothing more will be added."""
        self._is_last = True

    def take(self) -> SharedRequest | None:
        """The next to run; None where there is none."""
        self._plan_if_due()
        if not self._planned:
            return None
        shared = self._planned.popleft()
        self._num_planned_tokens -= shared.num_tokens
        self._last_taken.append(shared.prompt)
        return shared

    def forget(self, shared: SharedRequest) -> None:
        """It has its answer: who asks the same from now on asks anew."""
        if self._is_planning:
            self._by_key.pop(shared.key, None)

    def _is_within(self, num_tokens: int, num_rows: int) -> bool:
        """Whether a window of so much takes in more."""
        return num_tokens < self._window.max_window_tokens and num_rows < self._window.max_window_rows

    @property
    def _has_room_for_read(self) -> bool:
        """Whether this window would take in more, with what was read since."""
        num_rows = self._num_window_rows + len(self._read)
        return self._is_within(self._num_window_tokens + self._num_read_tokens, num_rows)

    def _plan_if_due(self) -> None:
        if not self._planned:
            self._num_window_tokens = self._num_window_rows = 0
        if not self._planned or (self._is_planning and self._can_join()):
            self._take_in_read()

    def _can_join(self) -> bool:
        """Whether what was read since is to be planned together with what is left of this window."""
        if self._is_last:
            num_tokens = self._num_planned_tokens + self._num_read_tokens
            return not self._is_final and self._is_within(num_tokens, len(self))
        if not self._is_within(self._num_window_tokens, self._num_window_rows):
            return False
        return self._num_read_tokens >= self._num_planned_tokens or not self._has_room_for_read

    def _take_in_read(self) -> None:
        read, self._read = self._read, []
        self._num_window_tokens += self._num_read_tokens
        self._num_window_rows += len(read)
        self._num_planned_tokens += self._num_read_tokens
        self._num_read_tokens = 0
        self._is_final = self._is_last
        requests = [*self._planned, *read]
        self._planned = deque(self._in_order(requests) if self._is_planning else requests)

    def _in_order(self, requests: list[SharedRequest]) -> Iterable[SharedRequest]:
        """By priority, and within one as planned."""
        by_priority: dict[int, list[SharedRequest]] = {}
        for shared in requests:
            by_priority.setdefault(shared.priority, []).append(shared)
        after = [*self._last_taken]
        for _, equals in sorted(by_priority.items()):
            plan = plan_order(
                [each.prompt for each in equals],
                [each.sampling_params.max_tokens * each.sampling_params.num_branches for each in equals],
                block_size=self._window.block_size,
                goal=Goal.FINISH if self._is_final else Goal.FLOW,
                after=after,
            )
            for planned in plan:
                shared = equals[planned.index]
                shared.num_new_tokens = shared.num_tokens - planned.num_shared_tokens
                yield shared
            after.append(equals[plan[-1].index].prompt)
