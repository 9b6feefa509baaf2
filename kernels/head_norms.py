"""HeadNorms: what some networks norm each head of query and key by before they turn it (Henry et al. 2020; Qwen3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """An RMS norm over each head, one for queries and one for keys."""

    query_weight: torch.Tensor
    """`[head_dim]`, of the dtype of the heads, contiguous."""
    key_weight: torch.Tensor
    eps: float
