"""What the choice of one sequence's next token depends on, compiled once a request so that a step does little."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from infer.engine.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from infer.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class LogitsRules:
    """Which tokens a request may not choose and which are favoured, as ids. Rows with the same parameters share it."""

    allowed: NDArray[np.int64] | None
    banned: NDArray[np.int64]
    """Bad words of one token."""
    banned_sequences: tuple[tuple[int, ...], ...]
    """Bad words of several tokens; the last of them is barred after the others."""
    min_tokens: int
    stopping: NDArray[np.int64]
    """EOS and stop ids, barred before `min_tokens`."""
    biased: NDArray[np.int64]
    biases: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One sequence, made once. `output_token_ids` is its live list: a step sees what was appended since."""

    params: SamplingParams
    output_token_ids: Sequence[int]
    seed: int
    rules: LogitsRules | None
    """None where nothing is barred or biased."""
    prompt_vocabulary: NDArray[np.int64]
    """The prompt's distinct tokens where they are penalised, else empty."""
    num_logprobs: int | None = None
    """Alternatives that are reported beside the chosen token's logprob; None reports nothing."""

    @property
    def is_plain(self) -> bool:
        """Whether the next token is simply the most probable one."""
        return self.rules is None and self.params.is_greedy and not self.params.has_penalties

    @property
    def is_direct(self) -> bool:
        """Whether the next token is chosen from the logits as they are."""
        return self.rules is None and not self.params.has_penalties

    @property
    def is_left_to_device(self) -> bool:
        """Whether the next token is chosen without the host, and nothing but the token is wanted."""
        return self.is_direct and self.num_logprobs is None

    def ahead(self, draft_token_ids: Sequence[int]) -> list[SamplingRow]:
        """This row, and as it will be after each of the drafts if all up to it turn out to be sampled."""
        if self.is_plain:
            return [self] * (len(draft_token_ids) + 1)
        outputs = ([*self.output_token_ids, *draft_token_ids[:end]] for end in range(1, len(draft_token_ids) + 1))
        return [self, *(replace(self, output_token_ids=output) for output in outputs)]


def prompt_vocabulary(params: SamplingParams, prompt_token_ids: Sequence[int]) -> NDArray[np.int64]:
    """Distinct tokens of the prompt, where `params` need them."""
    return np.unique(_ids(prompt_token_ids if params.repetition_penalty != 1.0 else ()))


def compile_rules(
    params: SamplingParams,
    *,
    vocab_size: int,
    eos_token_ids: Collection[int],
    encode: Callable[[str], Sequence[int]],
) -> LogitsRules | None:
    """The rules of `params` in token ids. `encode` adds no special tokens.

    A bad word is barred at the start of a text and after a space, which most tokenizers spell differently.

    Raises:
        RequestError: `invalid_input`, a token id that the model does not have.
    """
    allowed = params.allowed_token_ids
    _check_token_ids("allowed_token_ids", allowed or (), vocab_size)
    _check_token_ids("logit_bias", params.logit_bias, vocab_size)
    _check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    spellings = {tuple(encode(prefix + word.lstrip())) for word in params.bad_words for prefix in ("", " ")} - {()}
    if allowed is None and not spellings and not params.min_tokens and not params.logit_bias:
        return None
    stopping = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
    return LogitsRules(
        allowed=None if allowed is None else _ids(allowed),
        banned=_ids(spelling[0] for spelling in sorted(spellings) if len(spelling) == 1),
        banned_sequences=tuple(spelling for spelling in sorted(spellings) if len(spelling) > 1),
        min_tokens=params.min_tokens,
        stopping=_ids(token_id for token_id in sorted(stopping) if token_id < vocab_size),
        biased=_ids(params.logit_bias),
        biases=np.array(list(params.logit_bias.values()), np.float32),
    )


def _ids(token_ids: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(token_ids), np.int64)


def _check_token_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise RequestError("invalid_input", f"{name} must be below the vocabulary size, {vocab_size}: {token_id}")
