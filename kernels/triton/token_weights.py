"""Logits as weights, computed anew wherever they are read: a maximum and a temperature are all that they depend on."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

import triton
import triton.language as tl

from infer.kernels.reference.sampling import LEAST_EXPONENT, LEAST_WEIGHT

_LEAST_EXPONENT = tl.constexpr(LEAST_EXPONENT)
_LEAST_WEIGHT = tl.constexpr(LEAST_WEIGHT)


@triton.jit
def load_logits(logits_ptr: tl.tensor, tokens: tl.tensor, vocab_size: tl.constexpr) -> tl.tensor:
    """In float32, a NaN as infinite: so it is seen in a maximum."""
    logits = tl.load(logits_ptr + tokens, mask=tokens < vocab_size, other=float("-inf")).to(tl.float32)
    return tl.where(logits != logits, float("inf"), logits)


@triton.jit
def weights_of(logits: tl.tensor, maximum: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """`exp((logit - maximum) / temperature)`, the largest 1. Of a maximum that is not finite they have no meaning."""
    maximum = tl.where(tl.abs(maximum) == float("inf"), 0.0, maximum)
    exponents = tl.maximum(tl.minimum((logits - maximum) / temperature, 0.0), _LEAST_EXPONENT)
    weights = tl.exp(exponents)
    return tl.where(weights > _LEAST_WEIGHT, weights, 0.0)


@triton.jit
def kept_weights(
    logits_ptr: tl.tensor,
    tokens: tl.tensor,
    maximum: tl.tensor,
    temperature: tl.tensor,
    floor: tl.tensor,
    vocab_size: tl.constexpr,
) -> tl.tensor:
    """Weights of `tokens`, 0 where they are below `floor`."""
    weights = weights_of(load_logits(logits_ptr, tokens, vocab_size), maximum, temperature)
    return tl.where(weights >= floor, weights, 0.0)


@triton.jit
def mass_of(
    logits_ptr: tl.tensor,
    maximum: tl.tensor,
    temperature: tl.tensor,
    floor: tl.tensor,
    vocab_size: tl.constexpr,
    tile_size: tl.constexpr,
) -> tl.tensor:
    """The sum of all weights that are kept, in float64."""
    offsets = tl.arange(0, tile_size)
    mass = tl.zeros([1], tl.float64)
    for start in range(0, vocab_size, tile_size):
        weights = kept_weights(logits_ptr, start + offsets, maximum, temperature, floor, vocab_size)
        mass += tl.sum(weights, 0).to(tl.float64)
    return tl.sum(mass, 0)


@triton.jit
def find_least_weight(
    logits_ptr: tl.tensor,
    maximum: tl.tensor,
    temperature: tl.tensor,
    floor: tl.tensor,
    limit: tl.tensor,
    counts: tl.constexpr,
    vocab_size: tl.constexpr,
    tile_size: tl.constexpr,
) -> tl.tensor:
    """The greatest weight `w` such that at least `limit` tokens weigh as much (`counts`), or that the kept ones which
    weigh less sum to no more than `limit`.

    Both hold up to some weight and not beyond, and positive floats are in the order of their bits. Of the 30 that a
    number up to 1 has, two are found in a pass over the vocabulary, by trying the three numbers that differ in them.
    """
    offsets = tl.arange(0, tile_size)
    candidates = tl.arange(0, 4)
    bits = tl.zeros([1], tl.int32)
    for index in range(15):
        step = 1 << (28 - 2 * index)
        tried = (bits + candidates * step).to(tl.float32, bitcast=True)
        measures = tl.zeros([4], tl.float64)
        for start in range(0, vocab_size, tile_size):
            weights = kept_weights(logits_ptr, start + offsets, maximum, temperature, floor, vocab_size)[None, :]
            if counts:
                measures += tl.sum((weights >= tried[:, None]).to(tl.int32), 1).to(tl.float64)
            else:
                measures += tl.sum(tl.where(weights < tried[:, None], weights, 0.0), 1).to(tl.float64)
        holds = measures >= limit if counts else measures <= limit
        # The first always does: it is what has been found so far.
        bits += (tl.sum(holds.to(tl.int32), 0) - 1) * step
    return tl.sum(bits.to(tl.float32, bitcast=True), 0)
