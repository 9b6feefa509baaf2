"""dequant_linear: the weight as numbers, then PyTorch's linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from infer.kernels.grouped_weight import unpack_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.kernels.grouped_weight import GroupedWeight


def dequant_linear(
    hidden: torch.Tensor, weights: Sequence[GroupedWeight], bias: torch.Tensor | None = None
) -> torch.Tensor:
    """As `infer.kernels.dequant_linear.dequant_linear`."""
    weight = torch.cat([unpack_weight(each).to(hidden.dtype) for each in weights])
    return F.linear(hidden, weight, bias)
