"""An engine without a model: it answers every prompt with the prompt's own tokens, one a step."""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tiny_tokenizers import chatml_tokenizer

from infer.engine.errors import RequestError
from infer.engine.request import Choice, Completion, TokenLogprob
from infer.engine.sampling_params import SamplingParams
from infer.engine.stats import EngineStats
from infer.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infer.engine.request import Request


class EchoEngine:
    """Generates `max_tokens` tokens of each prompt, or all of it, for `max_num_seqs` requests at a time.

    Short answers finish before long ones that came earlier. `fitted` is what `fit_cache` was told,
    `most_unfinished` the most requests there ever were at a time. `failures` has the error codes that a request ends
    with, one after the other, before it is answered; `raising` the steps that raise, counted from 0: everything begins
    again.
    """

    model_name = "echo"
    last_step = None

    def __init__(
        self,
        *,
        max_num_seqs: int = 4,
        max_model_len: int = 512,
        failures: Mapping[int, Sequence[str]] = MappingProxyType({}),
        raising: Mapping[int, Exception] = MappingProxyType({}),
    ) -> None:
        self.tokenizer = Tokenizer(chatml_tokenizer(chat_template=None))
        self.default_sampling_params = SamplingParams(temperature=0.0)
        self.fitted: list[tuple[int | None, int | None]] = []
        self.most_unfinished = 0
        self._max_num_seqs = max_num_seqs
        self._max_model_len = max_model_len
        self._waiting: deque[Request] = deque()
        self._running: dict[int, tuple[Request, int]] = {}
        self._num_finished = 0
        self._failures = {request_id: list(codes) for request_id, codes in failures.items()}
        self._raising = raising
        self._num_steps = 0
        self.recovered: list[Exception] = []
        self.together: list[frozenset[int]] = []
        """Requests in the engine, of each step."""
        self.notes_together = True

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def describe(self) -> list[str]:
        return ["model echo"]

    def identity(self) -> dict[str, str]:
        return {"dtype of the model": "none", "device": "none"}

    def check_sampling_params(self, params: SamplingParams) -> None:
        pass

    def fit_cache(self, num_requests: int | None, max_request_tokens: int | None) -> str:
        self.fitted.append((num_requests, max_request_tokens))
        return "kv cache: none"

    def add_request(self, request: Request) -> None:
        if len(request.prompt_token_ids) >= self._max_model_len:
            raise RequestError("prompt_too_long", f"the prompt has {len(request.prompt_token_ids)} tokens")
        self._waiting.append(request)
        self.most_unfinished = max(self.most_unfinished, len(self._waiting) + len(self._running))

    def step(self) -> list[Completion]:
        while self._waiting and len(self._running) < self._max_num_seqs:
            request = self._waiting.popleft()
            self._running[request.request_id] = (request, 0)
        assert self._running, "a step with nothing to do"
        if self.notes_together:
            self.together.append(frozenset([*self._running, *(request.request_id for request in self._waiting)]))
        self._num_steps += 1
        if self._num_steps - 1 in self._raising:
            raise self._raising[self._num_steps - 1]
        completions = []
        for request_id, (request, num_tokens) in list(self._running.items()):
            if codes := self._failures.get(request_id):
                del self._running[request_id]
                completions.append(self._fail(request, codes.pop(0)))
                continue
            wanted = request.prompt_token_ids[: request.sampling_params.max_tokens]
            if num_tokens + 1 < len(wanted):
                self._running[request_id] = (request, num_tokens + 1)
                continue
            del self._running[request_id]
            completions.append(self._complete(request, wanted))
        self._num_finished += len(completions)
        return completions

    def recover(self, error: Exception) -> list[Completion]:
        self.recovered.append(error)
        self._waiting.extendleft(reversed([request for request, _ in self._running.values()]))
        self._running.clear()
        return []

    def stats(self) -> EngineStats:
        return EngineStats(
            num_requests_running=len(self._running),
            num_requests_waiting=len(self._waiting),
            num_requests_finished=self._num_finished,
        )

    def _fail(self, request: Request, code: str) -> Completion:
        choice = Choice("", (), "error")
        return Completion(request.request_id, (choice,), len(request.prompt_token_ids), error_code=code, error=code)

    def _complete(self, request: Request, token_ids: tuple[int, ...]) -> Completion:
        prompt = request.prompt_token_ids
        logprobs: Any = None
        if request.sampling_params.logprobs is not None:
            top = [(prompt[0], -0.5)] * request.sampling_params.logprobs
            logprobs = tuple(TokenLogprob(token_id, -0.25, tuple(top)) for token_id in token_ids)
        finish_reason: Any = "stop" if len(token_ids) == len(prompt) else "length"
        choice = Choice(self.tokenizer.decode(token_ids), token_ids, finish_reason, logprobs)
        choices = (choice,) * request.sampling_params.n
        return Completion(request.request_id, choices, len(prompt), len(prompt) // 2, len(token_ids) * len(choices))


def identify_echo(*_: object) -> dict[str, object]:
    """What a job is told of its model before it is loaded."""
    return {"model": "echo"}
