"""silu_and_mul as the formula has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F

if TYPE_CHECKING:
    import torch


def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """As `infer.kernels.activation.silu_and_mul`."""
    return F.silu(gate) * up
