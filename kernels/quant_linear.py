"""quant_linear: a linear layer whose weight and hidden states are int8 or fp8; and how they become that.

Weights are scaled by output channel, hidden states by token, both symmetric. Some channels of hidden states are far
larger than the others, and a scale that serves them leaves little of the rest. So blocks of channels can be rotated
before (as in QuaRot, Ashkboos et al. 2024, there over the whole width), and the weights, too, which leaves the product
as it was. It asks for no data to calibrate with.

An int8 product is exact up to its last
step: sums of integers do not depend on their order, so that a token's output depends neither on how many others there
are nor on the backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infer.kernels.operators import Work, operator
from infer.kernels.quantized_operands import LARGEST, SMALLEST_PEAK, QuantizedWeight
from infer.kernels.reference.rotate import rotate

if TYPE_CHECKING:
    from infer.kernels.backend import Backend
    from infer.kernels.quantized_operands import QuantizedTokens

ROTATIONS = (64, 32, 16)
"""Sizes of the blocks that channels are rotated in, the best first."""


def rotation_of(in_features: int) -> int:
    """The size of blocks to rotate so many channels in; 1 where they cannot be rotated."""
    return next((size for size in ROTATIONS if in_features % size == 0), 1)


def quantize_weight(weight: torch.Tensor, dtype: torch.dtype = torch.int8, rotation: int = 1) -> QuantizedWeight:
    """`weight`, `[out_features, in_features]`, rounded to nearest. Not packed."""
    out_features, in_features = weight.shape
    weight = rotate(weight, rotation) / rotation
    scales = weight.abs().amax(1).clamp(min=SMALLEST_PEAK) / LARGEST[dtype]
    elements = weight / scales.unsqueeze(1)
    rounded = elements if dtype.is_floating_point else elements.round()
    return QuantizedWeight(rounded.to(dtype), scales, out_features, in_features, rotation)


@operator(Work.OTHER)
def pack_weight(weight: QuantizedWeight, *, backend: Backend) -> QuantizedWeight:
    """`weight` as `quant_linear` of the backend reads it. Done once, when a model is loaded."""
    assert weight.elements.shape == (weight.out_features, weight.in_features), weight.elements.shape
    assert weight.elements.dtype in LARGEST, weight.elements.dtype
    assert weight.scales.shape == (weight.out_features,), weight.scales.shape
    assert weight.scales.dtype is torch.float32, weight.scales.dtype
    return backend.quant.pack_weight(weight)


@operator(Work.OTHER)
def quantize_tokens(
    hidden: torch.Tensor, dtype: torch.dtype, rotation: int = 1, *, backend: Backend
) -> QuantizedTokens:
    """`hidden`, `[..., size]`, as elements of `dtype`: rotated, times the inverse of each token's scale, computed as
    the largest number of the dtype by the token's peak, and rounded to nearest, ties to even.

    rotation: one of `ROTATIONS`, or 1
    """
    assert dtype in LARGEST, dtype
    kernels = backend.quant
    if rotation == 1:
        return kernels.quantize_tokens(hidden, dtype)
    if kernels.rotated is None:
        return kernels.quantize_tokens(rotate(hidden, rotation), dtype)
    return kernels.rotated.quantize_tokens(hidden, dtype, rotation)


@operator(Work.GEMM)
def quant_linear(
    tokens: QuantizedTokens,
    weight: QuantizedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    dtype: torch.dtype,
    backend: Backend,
) -> torch.Tensor:
    """`tokens @ weight.T + bias + residual`, `[..., out_features]` of `dtype`.

    tokens: made by the same backend
    weight: packed by it, and rotated as the tokens are
    bias: `[out_features]` of `dtype`
    residual: `[..., out_features]` of `dtype`

    A sum of products is rounded to float32, multiplied by the token's scale, then by the channel's; the bias is added
    in float32. That is rounded to `dtype`; the residual is added to what is left, and rounded again.
    """
    assert tokens.size == weight.in_features, (tokens.size, weight.in_features)
    shape = (*tokens.scales.shape, weight.out_features)
    assert bias is None or (bias.shape == shape[-1:] and bias.dtype is dtype), (bias.shape, bias.dtype)
    assert residual is None or (residual.shape == shape and residual.dtype is dtype), (residual.shape, residual.dtype)
    return backend.quant.quant_linear(tokens, weight, bias, residual, dtype)
