"""Choosing the next token of every row from its logits.

In this order, as in vLLM: rules (allowed tokens, bad words, min_tokens, biases), penalties, temperature, min_p, top_k,
top_p, draw. Rows that ask for none of it cost one search for the maximum. Reported logprobs are the model's own, before
all of these.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from infer.engine.logits import apply_penalties, apply_rules
from infer.engine.request import TokenLogprob
from infer.engine.sampling_row import LogitsRules, SamplingRow, compile_rules, prompt_vocabulary
from infer.engine.seeding import uniforms
from infer.kernels.argmax import argmax
from infer.kernels.reference.argmax import at, in_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from torch import Tensor

    from infer.engine.sampling_params import SamplingParams

_CHUNK_SIZE = 2**21
"""Logits that a CPU works on at a time: a float32 copy stays in its cache, and memory does not grow with the batch."""

_LEAST_EXPONENT = -87.0
"""exp() is up to a hundred times as slow where its result is no normal float32."""

_LEAST_WEIGHT = 2e-38
"""Just above exp(_LEAST_EXPONENT): what is not above it is taken for 0."""


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

    `encode` turns text into token ids without special tokens.
    """

    def __init__(
        self, *, vocab_size: int, eos_token_ids: Collection[int], encode: Callable[[str], Sequence[int]]
    ) -> None:
        self.vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._encode = encode
        self._compiled: tuple[SamplingParams, LogitsRules | None] | None = None

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

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """One token for each of `rows` from `logits` [num_rows, vocab_size], which are not changed."""
        assert len(logits) == len(rows), (len(logits), len(rows))
        maxima, token_ids = argmax(logits)
        # NaN spreads to the maximum, so the check costs nothing; an infinite one leaves no distribution either.
        is_finite = maxima.isfinite().tolist()
        indices = [index for index, row in enumerate(rows) if is_finite[index] and not row.is_plain]
        for chunk in _chunks(logits, indices):
            token_ids[chunk] = _choose(_select_float32(logits, chunk), [rows[index] for index in chunk])
        logprobs = _logprobs(logits, token_ids, rows)
        chosen = enumerate(zip(token_ids.tolist(), is_finite, strict=True))
        return [_result(token_id, finite, logprobs.get(index)) for index, (token_id, finite) in chosen]


def _result(token_id: int, is_finite: bool, logprob: TokenLogprob | None) -> SampledToken:
    if not is_finite:
        return SampledToken(-1, error_code="nan_logits")
    return SampledToken(token_id, logprob) if token_id >= 0 else SampledToken(-1, error_code="constraint_error")


def _choose(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Tokens [num_rows], -1 where all are barred. Works in place on `logits`, float32 with finite maxima."""
    apply_rules(logits, rows)
    apply_penalties(logits, rows)
    maxima, token_ids = argmax(logits)
    is_finite = maxima.isfinite()
    token_ids[~is_finite] = -1
    indices = [index for index, finite in enumerate(is_finite.tolist()) if finite and not rows[index].params.is_greedy]
    if indices:
        drawn = logits if len(indices) == len(rows) else _select_float32(logits, indices)
        token_ids[indices] = _draw(drawn, maxima[indices], [rows[index] for index in indices])
    return token_ids


def _draw(logits: Tensor, maxima: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Tokens drawn by inverting the cumulative distribution, in the order of the vocabulary. Works in place."""
    temperature = torch.tensor([row.params.temperature for row in rows], dtype=torch.float32, device=logits.device)
    weights = logits.sub_(maxima[:, None]).div_(temperature[:, None]).clamp_(min=_LEAST_EXPONENT).exp_()
    torch.threshold_(weights, _LEAST_WEIGHT, 0.0)
    _cut_improbable(weights, rows)
    draws = uniforms([row.seed for row in rows], [len(row.output_token_ids) for row in rows])
    return _find_mass(weights, torch.from_numpy(draws).to(logits.device))


def _cut_improbable(weights: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Zero the weights that min_p, top_k and top_p leave out. The greatest weight of a row is 1.

    Each of the three is a least weight, so tokens that tie with the last one kept are kept too, as transformers and
    vLLM do for top_k: what is kept does not hang on how a sort breaks ties.
    """
    device, vocab_size = weights.device, weights.shape[-1]
    floor = torch.tensor([row.params.min_p for row in rows], dtype=torch.float32, device=device)
    num_cut = [vocab_size - row.params.top_k if 0 < row.params.top_k < vocab_size else 0 for row in rows]
    ranked = [index for index, row in enumerate(rows) if num_cut[index] or row.params.top_p < 1.0]
    if ranked:
        ascending = _sorted(weights if len(ranked) == len(rows) else weights[ranked])
        floors = floor[ranked]
        if any(num_cut):
            least = torch.tensor([num_cut[index] for index in ranked], device=device)
            floors = torch.maximum(floors, at(ascending, least))
        _zero_below(ascending, floors)
        tail = torch.tensor([1.0 - rows[index].params.top_p for index in ranked], dtype=torch.float64, device=device)
        floor[ranked] = at(ascending, _find_mass(ascending, tail))
    _zero_below(weights, floor)


def _find_mass(weights: Tensor, shares: Tensor) -> Tensor:
    """Per row, the first index up to which the weights sum to more than `shares` (float64, [0, 1)) of all of them.

    Its weight is never 0. Whole blocks are summed first: a running sum over the vocabulary is ten times as slow.
    """
    blocks = in_blocks(weights, 0.0)
    sums = blocks.sum(-1)
    index, rest = _first_above(sums, shares * sums.sum(-1, dtype=torch.float64))
    within, _ = _first_above(at(blocks, index), rest)
    return index * blocks.shape[-1] + within


def _first_above(weights: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Per row, the first index up to which `weights` sum to more than the target, and what it leaves of the target."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    # Rounding may put a target at or over the total: then it is the last index with a weight.
    targets = torch.minimum(targets, cumulative[:, -1].nextafter(targets.new_zeros(())))
    index = (cumulative <= targets[:, None]).sum(-1)
    return index, targets - at(F.pad(cumulative, (1, 0)), index)


def _chunks(logits: Tensor, indices: list[int]) -> Iterator[list[int]]:
    num_rows = max(1, _CHUNK_SIZE // logits.shape[-1] if logits.is_cpu else len(logits))
    return (indices[begin : begin + num_rows] for begin in range(0, len(indices), num_rows))


def _select_float32(rows: Tensor, indices: list[int]) -> Tensor:
    """A copy of the rows at `indices`, ascending."""
    begin, end = indices[0], indices[-1] + 1
    if end - begin == len(indices):
        return rows[begin:end].to(torch.float32, copy=True)
    return rows.index_select(0, torch.tensor(indices, device=rows.device)).to(torch.float32)


def _zero_below(weights: Tensor, floor: Tensor) -> None:
    """In place. A mask of floats is three times as fast on a CPU as one of booleans."""
    if not floor.any():
        return
    weights.mul_(torch.ge(weights, floor[:, None], out=torch.empty_like(weights)))


def _sorted(weights: Tensor) -> Tensor:
    """A sorted copy, ascending. On a CPU by numpy: values alone and with vector instructions, 14 times as fast."""
    if not weights.is_cpu:
        return weights.sort(-1).values
    values = weights.numpy().copy()
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(np.ndarray.sort, np.array_split(values, torch.get_num_threads())))
    return torch.from_numpy(values)


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
