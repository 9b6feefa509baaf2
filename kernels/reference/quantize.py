"""Heads as int8 or float8_e4m3fn with a scale each, and back: `infer.kernels.kv_pages` says which."""

from __future__ import annotations

import torch

from infer.kernels.kv_pages import LARGEST, SMALLEST_PEAK


def quantize(heads: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements of `dtype` and float32 scales `[...]` of heads `[..., size]`. Rounds to nearest, ties to even.

    The scale of a head with a NaN is NaN, so that it comes back as NaN throughout.
    """
    heads = heads.to(torch.float32)
    peaks = heads.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_PEAK)
    scales = peaks / LARGEST[dtype]
    elements = heads / scales
    return (elements if dtype.is_floating_point else elements.round()).to(dtype), scales.squeeze(-1)


def dequantize(elements: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return elements.to(dtype) * scales.to(dtype).unsqueeze(-1)
