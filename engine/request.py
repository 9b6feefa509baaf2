"""What is asked of the engine, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
class Completion:
    """A finished request, or a failed one (`finish_reason` `error`, then `error_code` and `error` say why)."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache when the request was first scheduled."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for EOS or length."""
    error_code: str | None = None
    error: str | None = None
