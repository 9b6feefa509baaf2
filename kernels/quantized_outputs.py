"""Norms and activation whose outputs leave quantised, for a `quant_linear` that follows: one pass over memory.

Each gives what `quantize_tokens` makes of the output of the function it is named after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.operators import Work, operator
from infer.kernels.reference.rotate import rotate

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend
    from infer.kernels.quantized_operands import QuantizedTokens


@operator(Work.OTHER)
def quantized_rms_norm(
    hidden: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype, rotation: int = 1, *, backend: Backend
) -> QuantizedTokens:
    """`rms_norm` as elements of `dtype`."""
    assert weight.shape == hidden.shape[-1:], (weight.shape, hidden.shape)
    assert weight.dtype == hidden.dtype, (weight.dtype, hidden.dtype)
    kernels = backend.quant
    if rotation == 1:
        return kernels.quantized_rms_norm(hidden, weight, eps, dtype)
    if kernels.rotated is None:
        return kernels.quantize_tokens(rotate(backend.rms_norm(hidden, weight, eps), rotation), dtype)
    return kernels.rotated.quantized_rms_norm(hidden, weight, eps, dtype, rotation)


@operator(Work.OTHER)
def quantized_add_rms_norm(
    hidden: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    rotation: int = 1,
    *,
    backend: Backend,
) -> tuple[torch.Tensor, QuantizedTokens]:
    """`hidden + residual` as it is, and its `rms_norm` as elements of `dtype`."""
    assert hidden.shape == residual.shape, (hidden.shape, residual.shape)
    assert weight.shape == hidden.shape[-1:], (weight.shape, hidden.shape)
    assert weight.dtype == hidden.dtype == residual.dtype, (weight.dtype, hidden.dtype, residual.dtype)
    kernels = backend.quant
    if rotation == 1:
        return kernels.quantized_add_rms_norm(hidden, residual, weight, eps, dtype)
    if kernels.rotated is None:
        total, normalised = backend.add_rms_norm(hidden, residual, weight, eps)
        return total, kernels.quantize_tokens(rotate(normalised, rotation), dtype)
    return kernels.rotated.quantized_add_rms_norm(hidden, residual, weight, eps, dtype, rotation)


@operator(Work.OTHER)
def quantized_silu_and_mul(
    gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype, rotation: int = 1, *, backend: Backend
) -> QuantizedTokens:
    """`silu_and_mul` as elements of `dtype`."""
    assert gate.shape == up.shape, (gate.shape, up.shape)
    assert gate.dtype == up.dtype, (gate.dtype, up.dtype)
    assert gate.stride()[-1] == up.stride()[-1] == 1, (gate.stride(), up.stride())
    kernels = backend.quant
    if rotation == 1:
        return kernels.quantized_silu_and_mul(gate, up, dtype)
    if kernels.rotated is None:
        return kernels.quantize_tokens(rotate(backend.silu_and_mul(gate, up), rotation), dtype)
    return kernels.rotated.quantized_silu_and_mul(gate, up, dtype, rotation)
