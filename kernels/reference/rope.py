"""rotary_embedding as the formula has it."""

from __future__ import annotations

import torch


def rotary_embedding(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `infer.kernels.rope.rotary_embedding`."""
    first, second = heads.chunk(2, -1)
    return heads * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]
