"""Recovery: who ends and how small the next steps are when a step has failed.

Memory was short, or one row brings the reason with it; which row, the exception does not say. So all begin again, in
steps of half the size. What a step that holds one request alone fails of, that request ends with:

    256 sequences fail -> 128 fail -> 64 run well, and after a while 128 again -> ... -> 1 fails: it ends, others go on

Every failure makes the steps smaller or ends a request, so that the job always gets on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from infer.engine.errors import EngineError, describe
from infer.engine.failures import is_device_lost, is_out_of_memory

if TYPE_CHECKING:
    from infer.engine.config import EngineConfig
    from infer.engine.open_requests import OpenRequests
    from infer.engine.scheduler import Scheduler
    from infer.engine.scheduler_output import SchedulerOutput

_GOOD_STEPS = 16
"""After which the limits grow again; twice as many with each failure, so that it is not tried over and over."""
_MOST_GOOD_STEPS = 1024

_LEAST_TOKENS = 16
"""Of a step. Fewer would not save memory worth the time."""

_MOST_IN_A_ROW = 8
"""Requests that end `internal` with none that ends well between them: then it is no row's fault."""


@dataclass(frozen=True, slots=True)
class Blame:
    """The request that a step failed of."""

    request_id: int
    error_code: str
    error: str


class Recovery:
    """Watches the steps of an engine, and changes the limits of its scheduler."""

    def __init__(self, config: EngineConfig, scheduler: Scheduler, requests: OpenRequests) -> None:
        self.planned: SchedulerOutput | None = None
        """The plan of the step under way; None before there is one."""
        self._config = config
        self._scheduler = scheduler
        self._requests = requests
        # Without chunks a prompt has to fit into a step, so there the limit of tokens stays.
        self._least_tokens = config.max_num_batched_tokens
        if config.enable_chunked_prefill:
            self._least_tokens = min(_LEAST_TOKENS, config.max_num_batched_tokens)
        self._num_good = 0
        self._patience = _GOOD_STEPS
        self._num_in_a_row = 0

    @property
    def is_limited(self) -> bool:
        limits, config = self._scheduler.limits, self._config
        return (limits.max_num_seqs, limits.max_num_batched_tokens) != (
            config.max_num_seqs,
            config.max_num_batched_tokens,
        )

    def describe(self) -> str:
        limits = self._scheduler.limits
        return f"at most {limits.max_num_seqs:,} sequences and {limits.max_num_batched_tokens:,} tokens"

    def begin_step(self) -> None:
        self.planned = None

    def end_step(self) -> None:
        """The step went well."""
        if any(completion.error_code is None for completion in self._requests.finished):
            self._num_in_a_row = 0
        if not self.is_limited or self.planned is None or not self.planned.scheduled:
            return
        self._num_good += 1
        if self._num_good >= self._patience:
            self._num_good = 0
            limits, config = self._scheduler.limits, self._config
            limits.max_num_seqs = min(2 * limits.max_num_seqs, config.max_num_seqs)
            limits.max_num_batched_tokens = min(2 * limits.max_num_batched_tokens, config.max_num_batched_tokens)

    def judge(self, error: Exception) -> Blame | None:
        """Who ends with `error`; where nobody does, the next steps are smaller.

        Raises:
            Exception: `error`, where it would come again, whatever is left out.
        """
        if isinstance(error, EngineError) or is_device_lost(error):
            raise error
        error_code = "oom" if is_out_of_memory(error) else "internal"
        self._num_good = 0
        request_id = self._culprit(error_code)
        if request_id is None:
            self._make_smaller()
            return None
        if error_code == "internal":
            self._num_in_a_row += 1
            self._patience = _GOOD_STEPS
            if self._num_in_a_row >= _MOST_IN_A_ROW:
                raise error
        return Blame(request_id, error_code, describe(error))

    def _culprit(self, error_code: str) -> int | None:
        if self._requests.suspect is not None:
            return self._requests.suspect
        held = self.held()
        if len(held) != 1 or not held.issubset(self._requests):
            return None
        num_tokens = 0 if self.planned is None else self.planned.num_scheduled_tokens
        if error_code == "oom" and num_tokens > self._least_tokens:
            # In several steps it may have room.
            self._scheduler.limits.max_num_batched_tokens = min(
                num_tokens, self._scheduler.limits.max_num_batched_tokens
            )
            return None
        return held.pop()

    def held(self) -> set[int]:
        """The requests that the step was about; before there was a plan, those that it would have begun with."""
        scheduler = self._scheduler
        if self.planned is not None and self.planned.scheduled:
            return {item.sequence.request_id for item in self.planned.scheduled}
        first = scheduler.running or islice(scheduler.waiting, scheduler.limits.max_num_seqs)
        return {sequence.request_id for sequence in first}

    def _make_smaller(self) -> None:
        limits = self._scheduler.limits
        if self.planned is not None:
            limits.max_num_seqs = min(limits.max_num_seqs, max(1, len(self.planned.scheduled)))
        limits.max_num_seqs = max(1, limits.max_num_seqs // 2)
        limits.max_num_batched_tokens = max(self._least_tokens, limits.max_num_batched_tokens // 2)
        self._patience = min(2 * self._patience, _MOST_GOOD_STEPS)
