"""Norms and activation whose outputs leave quantised, for a `quant_linear` that follows: one pass over memory.

Each gives what `quantize_tokens` makes of the output of the function it is named after, to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend
    from infer.kernels.quantized_operands import QuantizedTokens


def quantized_rms_norm(
    hidden: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype, *, backend: Backend
) -> QuantizedTokens:
    """`rms_norm` as elements of `dtype`."""
    assert weight.shape == hidden.shape[-1:], (weight.shape, hidden.shape)
    assert weight.dtype == hidden.dtype, (weight.dtype, hidden.dtype)
    return backend.quant.quantized_rms_norm(hidden, weight, eps, dtype)


def quantized_add_rms_norm(
    hidden: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    *,
    backend: Backend,
) -> tuple[torch.Tensor, QuantizedTokens]:
    """`hidden + residual` as it is, and its `rms_norm` as elements of `dtype`."""
    assert hidden.shape == residual.shape, (hidden.shape, residual.shape)
    assert weight.shape == hidden.shape[-1:], (weight.shape, hidden.shape)
    assert weight.dtype == hidden.dtype == residual.dtype, (weight.dtype, hidden.dtype, residual.dtype)
    return backend.quant.quantized_add_rms_norm(hidden, residual, weight, eps, dtype)


def quantized_silu_and_mul(
    gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype, *, backend: Backend
) -> QuantizedTokens:
    """`silu_and_mul` as elements of `dtype`."""
    assert gate.shape == up.shape, (gate.shape, up.shape)
    assert gate.dtype == up.dtype, (gate.dtype, up.dtype)
    assert gate.stride()[-1] == up.stride()[-1] == 1, (gate.stride(), up.stride())
    return backend.quant.quantized_silu_and_mul(gate, up, dtype)
