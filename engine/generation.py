"""One unfinished request: its sequence, how its tokens are chosen, and when they are enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.detokenizer import detokenize
from infer.engine.request import Completion, TokenLogprob
from infer.engine.sequence import Sequence
from infer.engine.stopping import StopChecker

if TYPE_CHECKING:
    from infer.engine.request import Request
    from infer.engine.sampler import SampledToken, Sampler
    from infer.engine.stopping import Stop
    from infer.engine.tokenizer import Tokenizer

_ERRORS = {
    "nan_logits": "the model's logits are not finite",
    "constraint_error": "no token is allowed: allowed_token_ids, bad_words and min_tokens leave none",
}


class Generation:
    """What the engine keeps of a request until it is finished.

    Raises:
        RequestError: `invalid_input`, its parameters name a token that the model does not have.
    """

    __slots__ = ("_logprobs", "_stop_checker", "_tokenizer", "sampling_row", "sequence")

    def __init__(self, request: Request, *, sampler: Sampler, tokenizer: Tokenizer, max_model_len: int) -> None:
        self.sequence = Sequence(request, max_model_len)
        self._tokenizer = tokenizer
        self._logprobs: list[TokenLogprob] = []
        self.sampling_row = sampler.row(
            request.sampling_params,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=self.sequence.output_token_ids,
            seed=request.seed,
        )
        self._stop_checker = StopChecker(
            request.sampling_params,
            num_prompt_tokens=len(request.prompt_token_ids),
            max_model_len=max_model_len,
            eos_token_ids=tokenizer.eos_token_ids,
            decode=tokenizer.decode,
        )

    def accept(self, sampled: SampledToken) -> Completion | None:
        """Append the sampled token. Returns the completion, where it was the last."""
        if sampled.error_code is not None:
            return self._failed(sampled.error_code)
        self.sequence.append(sampled.token_id)
        if sampled.logprob is not None:
            self._logprobs.append(sampled.logprob)
        stop = self._stop_checker.check(self.sequence.output_token_ids)
        return None if stop is None else self._finished(stop)

    def _finished(self, stop: Stop) -> Completion:
        request, token_ids = self.sequence.request, self.sequence.output_token_ids
        return Completion(
            request.request_id,
            detokenize(token_ids, stop, self._tokenizer.decode),
            tuple(token_ids),
            stop.finish_reason,
            self.sequence.num_prompt_tokens,
            self.sequence.num_cached_tokens or 0,
            None if request.sampling_params.logprobs is None else tuple(self._logprobs),
            stop.stop_reason,
        )

    def _failed(self, error_code: str) -> Completion:
        token_ids = self.sequence.output_token_ids
        return Completion(
            self.sequence.request_id,
            self._tokenizer.decode(token_ids),
            tuple(token_ids),
            "error",
            self.sequence.num_prompt_tokens,
            self.sequence.num_cached_tokens or 0,
            error_code=error_code,
            error=f"{_ERRORS[error_code]}, at output token {len(token_ids)}",
        )
