"""Choosing the next token of every row from its logits.

In this order, as in vLLM: rules (allowed tokens, bad words, min_tokens, biases), penalties, temperature, min_p, top_k,
top_p, draw. Rows that ask for none of it cost one search for the maximum. Reported logprobs are the model's own, before
all of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from infer.engine.logits import apply_penalties, apply_rules
from infer.engine.request import TokenLogprob
from infer.engine.sampling_params import SamplingParams
from infer.engine.sampling_row import LogitsRules, SamplingRow, compile_rules, prompt_vocabulary
from infer.engine.seeding import uniforms
from infer.kernels import reference
from infer.kernels.reference.argmax import at
from infer.kernels.sampling import NUM_DRAW_PARAMETERS, DrawParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from infer.kernels.backend import SampleTokens

_CHUNK_SIZE = 2**21
"""Logits that a CPU works on at a time: a float32 copy stays in its cache, and memory does not grow with the batch."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The choice for one row, or why there is none: `nan_logits`, or `constraint_error` where every token is barred."""

    token_id: int
    logprob: TokenLogprob | None = None
    """Only for rows with `num_logprobs`."""
    error_code: str | None = None


class Sampler:
    """Knows the vocabulary; holds nothing of a row. A row's draw depends on its seed and on how many tokens it has
    generated, never on its neighbours, their order, or a preemption.

    `encode` turns text into token ids without special tokens, `sample_tokens` serves the device of the logits.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        eos_token_ids: Collection[int],
        encode: Callable[[str], Sequence[int]],
        sample_tokens: SampleTokens = reference.sample_tokens,
    ) -> None:
        self.vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._encode = encode
        self._sample_tokens = sample_tokens
        self._compiled: tuple[SamplingParams, LogitsRules | None] | None = None

    def warm_up(self, logits: Tensor) -> None:
        """Greedy and drawn, from `logits` [1, vocab_size]: what is compiled at first use is part of loading."""
        for temperature in (0.0, 1.0):
            params = SamplingParams(temperature=temperature)
            self.sample(logits, [self.row(params, prompt_token_ids=(), output_token_ids=(), seed=0)])

    def row(
        self,
        params: SamplingParams,
        *,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        seed: int,
        num_logprobs: int | None = None,
    ) -> SamplingRow:
        """What `sample` wants of a sequence, to be made once. `output_token_ids` is kept, not copied.

        `num_logprobs` alternatives are reported; None reports not even the chosen token's logprob.

        Raises:
            RequestError: `invalid_input`, `params` name a token that the model does not have.
        """
        # Most rows of a job have the job's own parameters: compiled once, and applied to all of them together.
        if self._compiled is None or self._compiled[0] is not params:
            rules = compile_rules(
                params, vocab_size=self.vocab_size, eos_token_ids=self._eos_token_ids, encode=self._encode
            )
            self._compiled = (params, rules)
        return SamplingRow(
            params,
            output_token_ids,
            seed,
            self._compiled[1],
            prompt_vocabulary(params, prompt_token_ids),
            num_logprobs,
        )

    def sample(
        self, logits: Tensor, rows: Sequence[SamplingRow], num_pending: Sequence[int] | None = None
    ) -> list[SampledToken]:
        """One token for each of `rows` from `logits` [num_rows, vocab_size], which are not changed.

        `num_pending` tokens of a row are not among its output yet; none of one with rules or penalties.
        """
        assert len(logits) == len(rows), (len(logits), len(rows))
        is_drawn = [row.is_direct and not row.params.is_greedy for row in rows]
        pending = [0] * len(rows) if num_pending is None else num_pending
        num_output_tokens = [len(row.output_token_ids) + more for row, more in zip(rows, pending, strict=True)]
        token_ids = self._sample_tokens(logits, _draw_parameters(rows, is_drawn, num_output_tokens, _stage_to(logits)))
        is_finite = (token_ids >= 0).tolist()
        indices = [index for index, row in enumerate(rows) if is_finite[index] and not row.is_direct]
        for chunk in _chunks(logits, indices):
            token_ids[chunk] = self._sample_changed(_select_float32(logits, chunk), [rows[index] for index in chunk])
        logprobs = _logprobs(logits, token_ids, rows)
        chosen = enumerate(zip(token_ids.tolist(), is_finite, strict=True))
        return [_result(token_id, finite, logprobs.get(index)) for index, (token_id, finite) in chosen]

    def choose(
        self,
        logits: Tensor,
        rows: Sequence[SamplingRow],
        num_output_tokens: Sequence[int],
        stage: Callable[[NDArray[np.float64]], Tensor],
    ) -> Tensor:
        """The tokens of rows that are left to the device, int64 [num_rows], -1 where logits are not finite.

        Nothing is waited for. `num_output_tokens` counts the tokens that are not read yet; `stage` takes an array to
        the logits.
        """
        is_drawn = [not row.params.is_greedy for row in rows]
        return self._sample_tokens(logits, _draw_parameters(rows, is_drawn, num_output_tokens, stage))

    def _sample_changed(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
        """Tokens [num_rows], -1 where all are barred. Works in place on `logits`, float32 with finite maxima."""
        apply_rules(logits, rows)
        apply_penalties(logits, rows)
        is_drawn = [not row.params.is_greedy for row in rows]
        num_output_tokens = [len(row.output_token_ids) for row in rows]
        return self._sample_tokens(logits, _draw_parameters(rows, is_drawn, num_output_tokens, _stage_to(logits)))


def sampled_token(token_id: int) -> SampledToken:
    """What `Sampler.choose` has chosen for a row."""
    return _result(token_id, token_id >= 0, None)


def _stage_to(logits: Tensor) -> Callable[[NDArray[np.float64]], Tensor]:
    return lambda values: torch.from_numpy(values).to(logits.device)


def _result(token_id: int, is_finite: bool, logprob: TokenLogprob | None) -> SampledToken:
    if not is_finite:
        return SampledToken(-1, error_code="nan_logits")
    return SampledToken(token_id, logprob) if token_id >= 0 else SampledToken(-1, error_code="constraint_error")


def _draw_parameters(
    rows: Sequence[SamplingRow],
    is_drawn: Sequence[bool],
    num_output_tokens: Sequence[int],
    stage: Callable[[NDArray[np.float64]], Tensor],
) -> DrawParameters:
    """Rows that are not drawn take their most probable token."""
    values = np.zeros((NUM_DRAW_PARAMETERS, len(rows)))
    drawn = [index for index, each in enumerate(is_drawn) if each]
    params = [rows[index].params for index in drawn]
    if drawn:
        values[:4, drawn] = np.array(
            [[each.temperature, each.min_p, max(0, each.top_k), each.top_p] for each in params]
        ).T
        seeds, positions = [rows[index].seed for index in drawn], [num_output_tokens[index] for index in drawn]
        values[4, drawn] = uniforms(seeds, positions)
    truncates = any(each.min_p > 0.0 or each.top_k > 0 or each.top_p < 1.0 for each in params)
    return DrawParameters(stage(values), bool(drawn), truncates)


def _chunks(logits: Tensor, indices: list[int]) -> Iterator[list[int]]:
    num_rows = max(1, _CHUNK_SIZE // logits.shape[-1] if logits.is_cpu else len(logits))
    return (indices[begin : begin + num_rows] for begin in range(0, len(indices), num_rows))


def _select_float32(rows: Tensor, indices: list[int]) -> Tensor:
    """A copy of the rows at `indices`, ascending."""
    begin, end = indices[0], indices[-1] + 1
    if end - begin == len(indices):
        return rows[begin:end].to(torch.float32, copy=True)
    return rows.index_select(0, torch.tensor(indices, device=rows.device)).to(torch.float32)


def _logprobs(logits: Tensor, token_ids: Tensor, rows: Sequence[SamplingRow]) -> dict[int, TokenLogprob]:
    """By row, for those that ask."""
    num_top = {index: row.num_logprobs for index, row in enumerate(rows) if row.num_logprobs is not None}
    result = {}
    for chunk in _chunks(logits, list(num_top)):
        logprobs = _select_float32(logits, chunk).log_softmax(-1)
        # A row without a token (-1) is looked up all the same; nobody reads it.
        chosen = at(logprobs, token_ids[chunk].clamp(min=0)).tolist()
        values, ids = logprobs.topk(min(max(num_top[index] for index in chunk), logits.shape[-1]))
        for index, logprob, top_ids, top in zip(chunk, chosen, ids.tolist(), values.tolist(), strict=True):
            alternatives = tuple(zip(top_ids, top, strict=True))[: num_top[index]]
            result[index] = TokenLogprob(int(token_ids[index]), logprob, alternatives)
    return result
