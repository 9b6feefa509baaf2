"""What the engine keeps of a request until it is finished, however its tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from infer.engine.phase_timer import PhaseTimer
from infer.engine.request import Choice, Completion
from infer.engine.sequence import SequenceStatus

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Many

    from infer.engine.sampler import SampledToken, Sampler
    from infer.engine.sampling_row import SamplingRow
    from infer.engine.scheduler import Scheduler
    from infer.engine.sequence import Sequence
    from infer.engine.tokenizer import Tokenizer

_ERRORS = {
    "nan_logits": "the model's logits are not finite",
    "constraint_error": "no token is allowed: allowed_token_ids, bad_words and min_tokens leave none",
}


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """What all requests of an engine have in common."""

    sampler: Sampler
    tokenizer: Tokenizer
    scheduler: Scheduler
    """Told which sequences are forked and which have ended."""
    max_model_len: int
    timer: PhaseTimer = field(default_factory=PhaseTimer)


class Generation(Protocol):
    """An unfinished request: its sequences, and what they have come to."""

    root: Sequence
    """The first of its sequences, to be scheduled."""
    num_generated_tokens: int
    """Of all its sequences together."""

    def sampling_rows(self, sequence: Sequence) -> Many[SamplingRow]:
        """What is to be sampled from the logits of one of its sequences that has reached its last token."""
        ...

    def accept(self, sequence: Sequence, sampled: Many[SampledToken]) -> Completion | None:
        """Book what was sampled, one for each of those rows. Returns the completion, where the request is finished."""
        ...

    def abort(self) -> None:
        """Take all its sequences out."""
        ...

    def sequences(self) -> Many[Sequence]:
        """Those that have not ended."""
        ...

    def partial_choices(self) -> list[Choice]:
        """What there is of its answers. Those that have not ended have no text."""
        ...


def finished_completion(generation: Generation, choices: Iterable[Choice]) -> Completion:
    root = generation.root
    return Completion(
        root.request_id,
        tuple(choices),
        root.num_prompt_tokens,
        root.num_cached_tokens or 0,
        generation.num_generated_tokens,
    )


def cut_short(generation: Generation, error_code: str, error: str) -> Completion:
    """Of a request that ends with what it has come to."""
    choices = generation.partial_choices()[: generation.root.request.sampling_params.n]
    return replace(finished_completion(generation, choices), error_code=error_code, error=error)


def partial_choice(sequence: Sequence) -> Choice:
    return Choice("", tuple(sequence.output_token_ids), "error")


def failed_completion(generation: Generation, sequence: Sequence, error_code: str, tokenizer: Tokenizer) -> Completion:
    """Of a request that ends because there is no next token for one of its sequences."""
    token_ids = sequence.output_token_ids
    choice = Choice(tokenizer.decode(token_ids), tuple(token_ids), "error")
    error = f"{_ERRORS[error_code]}, at output token {len(token_ids)}"
    return replace(finished_completion(generation, [choice]), error_code=error_code, error=error)


def abort_all(scheduler: Scheduler, sequences: Iterable[Sequence]) -> None:
    """How long they became says nothing about others."""
    for sequence in sequences:
        if sequence.status is not SequenceStatus.FINISHED:
            scheduler.abort(sequence)
