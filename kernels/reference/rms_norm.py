"""rms_norm and add_rms_norm as the formula has it."""

from __future__ import annotations

import torch


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `infer.kernels.rms_norm.rms_norm`."""
    elements = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    normalised = elements * torch.rsqrt(elements.pow(2).mean(-1, keepdim=True) + eps)
    return normalised.to(hidden.dtype) * weight


def add_rms_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `infer.kernels.rms_norm.add_rms_norm`."""
    total = hidden + residual
    return total, rms_norm(total, weight, eps)
