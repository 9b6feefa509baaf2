"""sample_tokens in plain PyTorch, by blocks of the vocabulary: fast on a CPU as well."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from infer.kernels.reference.argmax import argmax, at, in_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from infer.kernels.sampling import DrawParameters

    Argmax = Callable[[Tensor], tuple[Tensor, Tensor]]

_CHUNK_SIZE = 2**21
"""Weights that a CPU works on at a time: they stay in its cache, and memory does not grow with the batch."""

LEAST_EXPONENT = -87.0
"""exp() is up to a hundred times as slow where its result is no normal float32."""

LEAST_WEIGHT = 2e-38
"""Just above exp(LEAST_EXPONENT): what is not above it is taken for 0."""


def sample_tokens(logits: Tensor, parameters: DrawParameters, *, find_maxima: Argmax = argmax) -> Tensor:
    """As `infer.kernels.sampling.sample_tokens`."""
    maxima, token_ids = find_maxima(logits)
    is_finite = maxima.isfinite()
    token_ids[~is_finite] = -1
    if parameters.draws:
        is_drawn = (parameters.values[0] > 0.0) & is_finite
        for rows in _chunks(is_drawn.nonzero()[:, 0], logits):
            weights = logits.index_select(0, rows).to(torch.float32)
            token_ids[rows] = _draw(weights, maxima[rows], parameters.values[:, rows], parameters.truncates)
    return token_ids


def _chunks(rows: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    if not len(rows) or not logits.is_cpu:
        return (rows,) if len(rows) else ()
    return torch.split(rows, max(1, _CHUNK_SIZE // logits.shape[-1]))


def _draw(logits: Tensor, maxima: Tensor, values: Tensor, truncates: bool) -> Tensor:
    """Works in place on `logits`, float32 with finite maxima."""
    temperature, min_p, top_k, top_p, uniforms = values
    weights = logits.sub_(maxima[:, None]).div_(temperature.float()[:, None]).clamp_(min=LEAST_EXPONENT).exp_()
    torch.threshold_(weights, LEAST_WEIGHT, 0.0)
    if truncates:
        _cut_improbable(weights, min_p.float(), top_k, top_p)
    return _find_mass(weights, uniforms)


def _cut_improbable(weights: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor) -> None:
    """Zero the weights that min_p, top_k and top_p leave out. The greatest weight of a row is 1.

    Each of the three is a least weight, so tokens that tie with the last one kept are kept too, as transformers and
    vLLM do for top_k: what is kept does not hang on how a sort breaks ties.
    """
    vocab_size = weights.shape[-1]
    floor = min_p.clone()
    has_top_k = (top_k > 0) & (top_k < vocab_size)
    ranked = (has_top_k | (top_p < 1.0)).nonzero()[:, 0]
    if len(ranked):
        ascending = _sorted(weights if len(ranked) == len(weights) else weights[ranked])
        num_cut = torch.where(has_top_k, vocab_size - top_k, 0)[ranked].long()
        floors = torch.where(has_top_k[ranked], at(ascending, num_cut), 0.0).maximum(floor[ranked])
        _zero_below(ascending, floors)
        floor[ranked] = at(ascending, _find_mass(ascending, 1.0 - top_p[ranked]))
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
