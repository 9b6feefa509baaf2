"""What is asked of the engine, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from infer.engine.errors import RequestError

if TYPE_CHECKING:
    from infer.engine.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued. `request_id` is the caller's name for it and must be unique among the unfinished."""

    request_id: int
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    seed: int = 0
    """Of this request's own draws; does not depend on its neighbours."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One position's choice. `top` are the most probable alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a request."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for EOS or length."""
    score: float | None = None
    """By which choices are ranked, greatest first: the logprobs' sum over a power of the length. None: not ranked."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request, or a failed one: then `error_code` and `error` say why, and the choice is what there was."""

    request_id: int
    choices: tuple[Choice, ...]
    """`n` of them."""
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache when the request was first scheduled."""
    num_generated_tokens: int = 0
    """Those of answers that were not among the best included."""
    error_code: str | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Of the first choice."""
        return self.choices[0].finish_reason

    @property
    def num_output_tokens(self) -> int:
        """Of all choices."""
        return sum(len(choice.token_ids) for choice in self.choices)


def check_prompt(token_ids: tuple[int, ...], vocab_size: int, max_model_len: int) -> None:
    """Whether a request can be served at all.

    Raises:
        RequestError: `empty_prompt`, `prompt_too_long`, or `invalid_input` for tokens that the model does not have.
    """
    if not token_ids:
        raise RequestError("empty_prompt", "the prompt has no tokens")
    if not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise RequestError("invalid_input", f"token ids must be from 0 to {vocab_size - 1}")
    num_tokens = len(token_ids)
    if num_tokens >= max_model_len:
        raise RequestError(
            "prompt_too_long",
            f"the prompt has {num_tokens:,} tokens, and at most {max_model_len - 1:,} leave room for an answer",
        )
