"""sample_tokens on a GPU: one pass over the logits by splits of the vocabulary, and for rows that leave tokens out a
search for the least weight that is kept.

A split keeps its maximum, where that is, and the sum of its weights; from these the greatest logit of a row and the
split in which its draw lies are known, and only that split is read again. The least weight of top_k and top_p is found
bit by bit: "at least k tokens weigh as much" and "what weighs less is no more than the tail" hold up to it and not
beyond. A sort would move the whole vocabulary many times.
"""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from infer.kernels.triton.token_weights import find_least_weight, kept_weights, load_logits, mass_of, weights_of

if TYPE_CHECKING:
    from infer.kernels.sampling import DrawParameters

SPLIT_SIZE = 4096
"""Tokens of the vocabulary a program."""

_NO_TOKEN = tl.constexpr(2**31 - 1)


def sample_tokens(logits: torch.Tensor, parameters: DrawParameters) -> torch.Tensor:
    """As `infer.kernels.sampling.sample_tokens`."""
    num_rows, vocab_size = logits.shape
    num_splits = triton.cdiv(vocab_size, SPLIT_SIZE)
    device = logits.device
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=device)
    if not num_rows:
        return token_ids
    maxima, sums = torch.empty((2, num_rows, num_splits), dtype=torch.float32, device=device)
    places = torch.empty(num_rows, num_splits, dtype=torch.int32, device=device)
    sizes = {
        "vocab_size": vocab_size,
        "num_splits": num_splits,
        "num_splits_padded": triton.next_power_of_2(num_splits),
        "split_size": SPLIT_SIZE,
    }
    arguments = (logits, parameters.values, maxima, places, sums, num_rows, logits.stride(0))
    # What is not fused is the same in every kernel: weights are compared with weights.
    options = {"enable_fp_fusion": False}
    reduce_kernel[(num_rows, num_splits)](
        *arguments, vocab_size=vocab_size, num_splits=num_splits, split_size=SPLIT_SIZE, num_warps=8, **options
    )
    choose_kernel[(num_rows,)](token_ids, *arguments, **sizes, num_warps=4, **options)
    if parameters.truncates:
        truncate_kernel[(num_rows,)](token_ids, *arguments, **sizes, num_warps=16, **options)
    return token_ids


@triton.jit(do_not_specialize=["num_rows"])
def reduce_kernel(
    logits_ptr: tl.tensor,
    parameters_ptr: tl.tensor,
    maxima_ptr: tl.tensor,
    places_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    num_rows: tl.tensor,
    logits_row_stride: tl.tensor,
    vocab_size: tl.constexpr,
    num_splits: tl.constexpr,
    split_size: tl.constexpr,
) -> None:
    """Program `[row, split]`."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    tokens = split * split_size + tl.arange(0, split_size)
    logits = load_logits(logits_ptr + row * logits_row_stride, tokens, vocab_size)
    maximum = tl.max(logits, 0)
    temperature = tl.load(parameters_ptr + row).to(tl.float32)
    entry = row * num_splits + split
    tl.store(maxima_ptr + entry, maximum)
    tl.store(places_ptr + entry, tl.min(tl.where(logits == maximum, tokens, _NO_TOKEN), 0))
    if temperature > 0.0:
        tl.store(sums_ptr + entry, tl.sum(weights_of(logits, maximum, temperature), 0))


@triton.jit(do_not_specialize=["num_rows"])
def choose_kernel(
    token_ids_ptr: tl.tensor,
    logits_ptr: tl.tensor,
    parameters_ptr: tl.tensor,
    maxima_ptr: tl.tensor,
    places_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    num_rows: tl.tensor,
    logits_row_stride: tl.tensor,
    vocab_size: tl.constexpr,
    num_splits: tl.constexpr,
    num_splits_padded: tl.constexpr,
    split_size: tl.constexpr,
) -> None:
    """Program `[row]`. Rows that leave tokens out are left to `truncate_kernel`."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, num_splits_padded)
    is_split = splits < num_splits
    maxima = tl.load(maxima_ptr + row * num_splits + splits, mask=is_split, other=float("-inf"))
    maximum = tl.max(maxima, 0)
    temperature = tl.load(parameters_ptr + row).to(tl.float32)
    min_p, top_k, top_p = _cuts(parameters_ptr + row, num_rows, vocab_size)
    if tl.abs(maximum) == float("inf"):
        tl.store(token_ids_ptr + row, -1)
    elif temperature <= 0.0:
        places = tl.load(places_ptr + row * num_splits + splits, mask=is_split, other=_NO_TOKEN)
        tl.store(token_ids_ptr + row, tl.min(tl.where(maxima == maximum, places, _NO_TOKEN), 0).to(tl.int64))
    elif (min_p <= 0.0) & (top_k == 0) & (top_p >= 1.0):
        sums = tl.load(sums_ptr + row * num_splits + splits, mask=is_split, other=0.0)
        sums = (sums * weights_of(maxima, maximum, temperature)).to(tl.float64)
        target = tl.load(parameters_ptr + 4 * num_rows + row) * tl.sum(sums, 0)
        split = _first_above(sums, target, num_splits_padded)
        target -= tl.sum(tl.where(splits < split, sums, 0.0), 0)
        tokens = split * split_size + tl.arange(0, split_size)
        logits = load_logits(logits_ptr + row * logits_row_stride, tokens, vocab_size)
        weights = weights_of(logits, maximum, temperature).to(tl.float64)
        token = split * split_size + _first_above(weights, target, split_size)
        tl.store(token_ids_ptr + row, token.to(tl.int64))


@triton.jit(do_not_specialize=["num_rows"])
def truncate_kernel(
    token_ids_ptr: tl.tensor,
    logits_ptr: tl.tensor,
    parameters_ptr: tl.tensor,
    maxima_ptr: tl.tensor,
    places_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    num_rows: tl.tensor,
    logits_row_stride: tl.tensor,
    vocab_size: tl.constexpr,
    num_splits: tl.constexpr,
    num_splits_padded: tl.constexpr,
    split_size: tl.constexpr,
) -> None:
    """Program `[row]`, of those that leave tokens out."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, num_splits_padded)
    maxima = tl.load(maxima_ptr + row * num_splits + splits, mask=splits < num_splits, other=float("-inf"))
    maximum = tl.max(maxima, 0)
    temperature = tl.load(parameters_ptr + row).to(tl.float32)
    min_p, top_k, top_p = _cuts(parameters_ptr + row, num_rows, vocab_size)
    is_whole = (min_p <= 0.0) & (top_k == 0) & (top_p >= 1.0)
    if is_whole | (temperature <= 0.0) | (tl.abs(maximum) == float("inf")):
        return
    logits_ptr += row * logits_row_stride
    floor = min_p
    if top_k > 0:
        limit = top_k.to(tl.float64)
        least = find_least_weight(logits_ptr, maximum, temperature, floor, limit, True, vocab_size, split_size)
        floor = tl.maximum(floor, least)
    total = mass_of(logits_ptr, maximum, temperature, floor, vocab_size, split_size)
    if top_p < 1.0:
        limit = (1.0 - top_p) * total
        least = find_least_weight(logits_ptr, maximum, temperature, floor, limit, False, vocab_size, split_size)
        floor = tl.maximum(floor, least)
        total = mass_of(logits_ptr, maximum, temperature, floor, vocab_size, split_size)
    target = tl.load(parameters_ptr + 4 * num_rows + row) * total

    offsets = tl.arange(0, split_size)
    before = total * 0.0
    token = -1
    last = -1
    for start in range(0, vocab_size, split_size):
        weights = kept_weights(logits_ptr, start + offsets, maximum, temperature, floor, vocab_size)
        last = tl.maximum(last, tl.max(tl.where(weights > 0.0, start + offsets, -1), 0))
        mass = tl.sum(weights, 0).to(tl.float64)
        if (token < 0) & (before + mass > target):
            token = start + _first_above(weights.to(tl.float64), target - before, split_size)
        before += mass
    tl.store(token_ids_ptr + row, tl.where(token < 0, last, token).to(tl.int64))


@triton.jit
def _cuts(parameters_ptr: tl.tensor, num_rows: tl.tensor, vocab_size: tl.constexpr) -> tuple[tl.tensor, ...]:
    """min_p, top_k or 0, and top_p of a row."""
    min_p = tl.load(parameters_ptr + num_rows).to(tl.float32)
    top_k = tl.load(parameters_ptr + 2 * num_rows)
    return min_p, tl.where(top_k < vocab_size, top_k, 0.0).to(tl.int32), tl.load(parameters_ptr + 3 * num_rows)


@triton.jit
def _first_above(weights: tl.tensor, target: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """The first index up to which `weights` sum to more than the target, which rounding may have put too high: then the
    last one with a weight."""
    indices = tl.arange(0, size)
    is_above = (tl.cumsum(weights, 0) > target) & (weights > 0.0)
    first = tl.min(tl.where(is_above, indices, size), 0)
    last = tl.max(tl.where(weights > 0.0, indices, 0), 0)
    return tl.minimum(first, last)
