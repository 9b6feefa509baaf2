"""The parts of a layer as fewer kernels: FusedRMSNorm and FusedGatedMLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from infer.engine.prepack import merge
from infer.kernels.activation import silu_and_mul
from infer.kernels.rms_norm import add_rms_norm, rms_norm

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend


class FusedRMSNorm(nn.Module):
    """An RMS norm."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor, eps: float, backend: Backend) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach(), False)
        self.eps = eps
        self._backend = backend

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., size]`"""
        return rms_norm(hidden, self.weight, self.eps, backend=self._backend)

    def add(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden + residual`, and the norm of it."""
        return add_rms_norm(hidden, residual, self.weight, self.eps, backend=self._backend)


class FusedGatedMLP(nn.Module):
    """`down_proj(silu(gate_proj(hidden)) * up_proj(hidden))`: gate and up as one product, activation and multiplication
    as one kernel."""

    def __init__(self, mlp: Any, backend: Backend) -> None:
        super().__init__()
        self.gate_up_proj: nn.Module = merge([mlp.gate_proj, mlp.up_proj])
        self.down_proj: nn.Module = mlp.down_proj
        self._backend = backend

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., hidden_size]`"""
        gate, up = self.gate_up_proj(hidden).chunk(2, -1)
        output: torch.Tensor = self.down_proj(silu_and_mul(gate, up, backend=self._backend))
        return output


def norm_eps(norm: object) -> float | None:
    """What an RMS norm adds to the mean square, by the names that transformers has for it; None where it has none."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return eps if isinstance(eps, float) else None
