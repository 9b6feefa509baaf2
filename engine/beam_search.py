"""Beam search without a model: which continuations of which beams live on, which are answers, and when it is over.

The same beams as transformers' `generate` with `num_beams`, `length_penalty` and `early_stopping=False` (5.x,
`GenerationMixin._beam_search`), which decide these things differently from the textbook: an answer ends only where its
last token is among the `beam_width` best continuations, and the search is over when there are `beam_width` answers and
the best beam, were it to end here, would be worse than the worst of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, slots=True)
class Continuation:
    """One token more behind one of the beams."""

    beam: int
    """By its place among those that were running."""
    token_id: int
    log_likelihood: float
    """Of all tokens generated, this one included."""


@dataclass(frozen=True, slots=True)
class BeamStep:
    """What becomes of the beams. Those that no running continuation names are given up."""

    running: tuple[Continuation, ...]
    finished: tuple[tuple[Continuation, float], ...]
    """New answers with their scores, each among the `beam_width` best so far."""


class BeamSearch:
    """The scores of one request's beams. `advance` is called once a generated token, until `is_over`."""

    def __init__(
        self, *, beam_width: int, max_tokens: int, length_penalty: float, stop_token_ids: Collection[int]
    ) -> None:
        self._beam_width = beam_width
        self._max_tokens = max_tokens
        self._length_penalty = length_penalty
        self._stop_token_ids = frozenset(stop_token_ids)
        self.num_candidates = beam_width + len(self._stop_token_ids)
        """Continuations of each beam that are looked at: `beam_width` of them do not stop, and no more can live on."""
        self._log_likelihoods = [0.0]
        self._scores: list[float] = []
        """Of the best `beam_width` answers so far, descending."""
        self._num_tokens = 0
        self.is_over = False

    def advance(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> BeamStep:
        """Choose among the `num_candidates` most probable tokens, with their logprobs, of each running beam."""
        self._num_tokens += 1
        best = sorted(
            (
                Continuation(beam, token_id, log_likelihood + logprob)
                for beam, (log_likelihood, tokens) in enumerate(zip(self._log_likelihoods, candidates, strict=True))
                for token_id, logprob in tokens
            ),
            key=lambda continuation: continuation.log_likelihood,
            reverse=True,
        )
        ended = [self._num_tokens >= self._max_tokens or each.token_id in self._stop_token_ids for each in best]
        running = [each for each, is_end in zip(best, ended, strict=True) if not is_end][: self._beam_width]
        finished = [each for each, is_end in zip(best[: self._beam_width], ended, strict=False) if is_end]
        step = BeamStep(tuple(running), tuple(self._keep_best(finished)))
        self._log_likelihoods = [each.log_likelihood for each in running]
        self.is_over = not running or not self._can_improve()
        return step

    def _keep_best(self, finished: list[Continuation]) -> list[tuple[Continuation, float]]:
        scored = [(each, self._score(each.log_likelihood)) for each in finished]
        self._scores = sorted([*self._scores, *(score for _, score in scored)], reverse=True)[: self._beam_width]
        return [(each, score) for each, score in scored if score >= self._scores[-1]]

    def _can_improve(self) -> bool:
        if len(self._scores) < self._beam_width:
            return True
        return self._score(self._log_likelihoods[0]) > self._scores[-1]

    def _score(self, log_likelihood: float) -> float:
        return float(log_likelihood / self._num_tokens**self._length_penalty)
