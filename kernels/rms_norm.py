"""rms_norm and add_rms_norm: each row divided by the root of its mean square (Zhang & Sennrich 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.operators import Work, operator

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend


@operator(Work.OTHER)
def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float, *, backend: Backend) -> torch.Tensor:
    """Computed in float32, rounded to the dtype before the weight is multiplied, as Llama does.

    hidden: `[..., size]`, size a multiple of 16
    weight: `[size]`, of the same dtype

    Returns a contiguous tensor of the shape of `hidden`.
    """
    assert weight.shape == hidden.shape[-1:], (weight.shape, hidden.shape)
    assert weight.dtype == hidden.dtype, (weight.dtype, hidden.dtype)
    return backend.rms_norm(hidden, weight, eps)


@operator(Work.OTHER)
def add_rms_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, backend: Backend
) -> tuple[torch.Tensor, torch.Tensor]:
    """`hidden + residual`, rounded to the dtype, and its `rms_norm`: two contiguous tensors of that shape."""
    assert hidden.shape == residual.shape, (hidden.shape, residual.shape)
    assert weight.shape == hidden.shape[-1:], (weight.shape, hidden.shape)
    assert weight.dtype == hidden.dtype == residual.dtype, (weight.dtype, hidden.dtype, residual.dtype)
    return backend.add_rms_norm(hidden, residual, weight, eps)
