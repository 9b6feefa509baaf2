"""linear and gated_linear as the formulas have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F

from infer.kernels.reference.rms_norm import rms_norm

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Weight:
    """As it came."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class GatedWeight:
    gate: Weight
    up: Weight


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> Weight:
    """As `infer.kernels.linear.LinearKernels.pack`."""
    return Weight(weight, bias)


def pack_gated(
    gate: torch.Tensor, up: torch.Tensor, gate_bias: torch.Tensor | None, up_bias: torch.Tensor | None
) -> GatedWeight:
    """As `infer.kernels.linear.LinearKernels.pack_gated`."""
    return GatedWeight(Weight(gate, gate_bias), Weight(up, up_bias))


def linear(hidden: torch.Tensor, weight: Weight, residual: torch.Tensor | None = None) -> torch.Tensor:
    """As `infer.kernels.linear.linear`."""
    output = F.linear(hidden, weight.weight, weight.bias)
    return output if residual is None else output + residual


def gated_linear(hidden: torch.Tensor, weight: GatedWeight) -> torch.Tensor:
    """As `infer.kernels.linear.gated_linear`."""
    return F.silu(linear(hidden, weight.gate)) * linear(hidden, weight.up)


def norm_linear(hidden: torch.Tensor, weight: torch.Tensor, eps: float, packed: Weight) -> torch.Tensor:
    """As `infer.kernels.linear.norm_linear`."""
    return linear(rms_norm(hidden, weight, eps), packed)


def output_and_mlp(
    attended: torch.Tensor,
    hidden: torch.Tensor,
    o_proj: Weight,
    weight: torch.Tensor,
    eps: float,
    gate_up: GatedWeight,
    down: Weight,
) -> torch.Tensor:
    """As `infer.kernels.linear.output_and_mlp`."""
    total = linear(attended, o_proj, hidden)
    return linear(gated_linear(rms_norm(total, weight, eps), gate_up), down, total)
