"""quant_linear and the quantisation of tokens as the formula has it."""

from __future__ import annotations

import torch

from infer.kernels.quant_kernels import QuantKernels
from infer.kernels.quantized_operands import LARGEST, SMALLEST_PEAK, QuantizedTokens, QuantizedWeight
from infer.kernels.reference.activation import silu_and_mul
from infer.kernels.reference.rms_norm import add_rms_norm, rms_norm


def pack_weight(weight: QuantizedWeight) -> QuantizedWeight:
    """As `infer.kernels.quant_linear.pack_weight`; there is nothing to do."""
    return weight


def quantize_tokens(hidden: torch.Tensor, dtype: torch.dtype) -> QuantizedTokens:
    """As `infer.kernels.quant_linear.quantize_tokens`."""
    elements = hidden.to(torch.float32)
    peaks = elements.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_PEAK)
    # A number by a tensor would be its reciprocal times the number, rounded twice.
    elements = elements * (torch.full_like(peaks, LARGEST[dtype]) / peaks)
    rounded = elements if dtype.is_floating_point else elements.round()
    return QuantizedTokens(rounded.to(dtype), (peaks / LARGEST[dtype]).squeeze(-1), hidden.shape[-1])


def quant_linear(
    tokens: QuantizedTokens,
    weight: QuantizedWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """As `infer.kernels.quant_linear.quant_linear`."""
    # In float64 no sum of integers is rounded.
    sums = (tokens.elements.to(torch.float64) @ weight.elements.to(torch.float64).T).to(torch.float32)
    output = sums * tokens.scales.unsqueeze(-1) * weight.scales
    if bias is not None:
        output = output + bias.to(torch.float32)
    output = output.to(dtype)
    return output if residual is None else output + residual


def quantized_rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> QuantizedTokens:
    """As `infer.kernels.quantized_outputs.quantized_rms_norm`."""
    return quantize_tokens(rms_norm(hidden, weight, eps), dtype)


def quantized_add_rms_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, QuantizedTokens]:
    """As `infer.kernels.quantized_outputs.quantized_add_rms_norm`."""
    total, normalised = add_rms_norm(hidden, residual, weight, eps)
    return total, quantize_tokens(normalised, dtype)


def quantized_silu_and_mul(gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype) -> QuantizedTokens:
    """As `infer.kernels.quantized_outputs.quantized_silu_and_mul`."""
    return quantize_tokens(silu_and_mul(gate, up), dtype)


QUANT_KERNELS = QuantKernels(
    pack_weight,
    quantize_tokens,
    quant_linear,
    quantized_rms_norm,
    quantized_add_rms_norm,
    quantized_silu_and_mul,
)
