"""One sequence of a request: how its tokens are chosen, and when they are enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.detokenizer import detokenize
from infer.engine.request import Choice, TokenLogprob
from infer.engine.stopping import StopChecker

if TYPE_CHECKING:
    from infer.engine.sampler import SampledToken
    from infer.engine.sampling_row import SamplingRow
    from infer.engine.sequence import Sequence
    from infer.engine.stopping import Stop
    from infer.engine.tokenizer import Tokenizer


class Branch:
    """A sequence whose tokens are drawn one after the other, whatever becomes of its siblings."""

    __slots__ = ("_logprobs", "_stop_checker", "_tokenizer", "sampling_row", "sequence")

    def __init__(self, sequence: Sequence, sampling_row: SamplingRow, tokenizer: Tokenizer) -> None:
        self.sequence = sequence
        self.sampling_row = sampling_row
        self._tokenizer = tokenizer
        self._logprobs: list[TokenLogprob] = []
        self._stop_checker = StopChecker(
            sequence.request.sampling_params,
            max_tokens=sequence.max_output_tokens,
            eos_token_ids=tokenizer.eos_token_ids,
            decode=tokenizer.decode,
        )

    def append(self, sampled: SampledToken) -> Stop | None:
        """Returns why the sequence has ended, where it has."""
        self.sequence.append(sampled.token_id)
        if sampled.logprob is not None:
            self._logprobs.append(sampled.logprob)
        return self._stop_checker.check(self.sequence.output_token_ids)

    def choice(self, stop: Stop) -> Choice:
        """What it has come to."""
        params, token_ids = self.sequence.request.sampling_params, self.sequence.output_token_ids
        score = sum(each.logprob for each in self._logprobs) / len(token_ids) if params.is_ranked else None
        return Choice(
            detokenize(token_ids, stop, self._tokenizer.decode),
            tuple(token_ids),
            stop.finish_reason,
            None if params.logprobs is None else tuple(self._logprobs),
            stop.stop_reason,
            score,
        )
