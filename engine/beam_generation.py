"""A request answered by beam search: its beams go on together, one token at a time, once all of them are computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from infer.engine.beam_search import BeamSearch
from infer.engine.detokenizer import detokenize
from infer.engine.generation import abort_all, failed_completion, finished_completion, partial_choice
from infer.engine.request import Choice, TokenLogprob
from infer.engine.sequence import Sequence
from infer.engine.stopping import Stop

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from infer.engine.beam_search import Continuation
    from infer.engine.generation import GenerationContext
    from infer.engine.request import Completion, Request
    from infer.engine.sampler import SampledToken
    from infer.engine.sampling_row import SamplingRow


@dataclass(frozen=True, slots=True)
class _Beam:
    """A running one. The sequence of a beam that was given up is taken over by none."""

    sequence: Sequence
    logprobs: tuple[TokenLogprob, ...] = ()
    """Empty where none are asked for."""


class BeamGeneration:
    """Beams are sequences that are forked where several continuations of one live on.

    Raises:
        RequestError: `invalid_input`, its parameters name a token that the model does not have.
    """

    __slots__ = (
        "_answers", "_beams", "_candidates", "_context", "_eos_token_ids", "_num_forks", "_params", "_row",
        "_search", "_stop_token_ids", "num_generated_tokens", "root",
    )  # fmt: skip

    def __init__(self, request: Request, context: GenerationContext) -> None:
        params = request.sampling_params
        assert params.beam_width is not None, params
        self.root = Sequence(request, context.max_model_len)
        self.root.num_branches = params.beam_width
        self.num_generated_tokens = 0
        self._context = context
        self._params = params
        self._eos_token_ids = frozenset(() if params.ignore_eos else context.tokenizer.eos_token_ids)
        self._stop_token_ids = self._eos_token_ids.union(params.stop_token_ids)
        self._search = BeamSearch(
            beam_width=params.beam_width,
            max_tokens=self.root.max_output_tokens,
            length_penalty=params.length_penalty,
            stop_token_ids=self._stop_token_ids,
        )
        self._row = context.sampler.row(
            replace(params, temperature=0.0),
            prompt_token_ids=(),
            output_token_ids=(),
            seed=request.seed,
            num_logprobs=max(self._search.num_candidates, params.logprobs or 0),
        )
        self._beams = [_Beam(self.root)]
        self._num_forks = 0
        self._candidates: dict[Sequence, Many[tuple[int, float]]] = {}
        """Of the beams that have been computed to their last token."""
        self._answers: list[Choice] = []
        """The `n` best so far, best first."""

    def sampling_rows(self, sequence: Sequence) -> list[SamplingRow]:
        return [self._row]

    def accept(self, sequence: Sequence, sampled: Many[SampledToken]) -> Completion | None:
        (token,) = sampled
        if token.error_code is not None:
            self.abort()
            return failed_completion(self, sequence, token.error_code, self._context.tokenizer)
        assert token.logprob is not None, token
        self.num_generated_tokens += 1
        self._candidates[sequence] = token.logprob.top
        sequence.awaits_choice = True
        if len(self._candidates) < len(self._beams):
            return None
        self._advance()
        if not self._search.is_over:
            return None
        self.abort()
        return finished_completion(self, self._answers)

    def abort(self) -> None:
        abort_all(self._context.scheduler, self.sequences())

    def sequences(self) -> list[Sequence]:
        return [beam.sequence for beam in self._beams]

    def partial_choices(self) -> list[Choice]:
        return [*self._answers, *map(partial_choice, self.sequences())]

    def _advance(self) -> None:
        num_candidates = self._search.num_candidates
        candidates = [self._candidates[beam.sequence] for beam in self._beams]
        step = self._search.advance([each[:num_candidates] for each in candidates])
        for continuation, score in step.finished:
            self._answers.append(self._answer(continuation, score))
        self._answers = sorted(self._answers, key=_score, reverse=True)[: self._params.n]
        running = [(each, self._logprobs(each)) for each in step.running]
        sequences = self._continue(step.running)
        self._beams = [_Beam(sequence, logprobs) for sequence, (_, logprobs) in zip(sequences, running, strict=True)]
        self._candidates = {}

    def _continue(self, running: Many[Continuation]) -> list[Sequence]:
        """The sequences of the new beams: a beam's own for its first continuation, forks of it for the others."""
        scheduler = self._context.scheduler
        # Seats are free before they are taken.
        going_on = {each.beam for each in running}
        abort_all(scheduler, (beam.sequence for index, beam in enumerate(self._beams) if index not in going_on))
        self.root.num_branches = 1
        sequences: list[Sequence] = []
        taken: set[int] = set()
        for each in running:
            sequence = self._beams[each.beam].sequence
            if each.beam in taken:
                self._num_forks += 1
                sequence = scheduler.fork(sequence, self._num_forks)
            taken.add(each.beam)
            sequences.append(sequence)
        for sequence, each in zip(sequences, running, strict=True):
            sequence.awaits_choice = False
            sequence.append(each.token_id)
        return sequences

    def _logprobs(self, continuation: Continuation) -> tuple[TokenLogprob, ...]:
        """Of the beam with its new token."""
        if self._params.logprobs is None:
            return ()
        beam = self._beams[continuation.beam]
        top = tuple(self._candidates[beam.sequence])
        logprob = dict(top)[continuation.token_id]
        return (*beam.logprobs, TokenLogprob(continuation.token_id, logprob, top[: self._params.logprobs]))

    def _answer(self, continuation: Continuation, score: float) -> Choice:
        sequence, token_id = self._beams[continuation.beam].sequence, continuation.token_id
        token_ids = (*sequence.output_token_ids, token_id)
        if token_id not in self._stop_token_ids:
            stop = Stop("length", None, len(token_ids))
        else:
            stop = Stop("stop", None if token_id in self._eos_token_ids else token_id, len(token_ids) - 1)
        with self._context.timer.phase("detokenize"):
            text = detokenize(token_ids, stop, self._context.tokenizer.decode)
        return Choice(
            text,
            token_ids,
            stop.finish_reason,
            None if self._params.logprobs is None else self._logprobs(continuation),
            stop.stop_reason,
            score,
        )


def _score(choice: Choice) -> float:
    assert choice.score is not None, choice
    return choice.score
