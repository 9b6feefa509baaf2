"""Modules swapped after loading for faster ones that compute the same. The same for every architecture."""

from __future__ import annotations

import torch
from torch import nn


class PrepackedLinear(nn.Module):
    """A bfloat16 linear layer on a CPU whose weight is laid out once for oneDNN, not again at every call.

    Bit-identical to the layer it replaces. oneDNN picks the layout for a number of rows; one that suits a full step
    serves the others as well.
    """

    _NUM_ROWS = 256

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.register_buffer(
            "packed_weight", torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), self._NUM_ROWS), False
        )
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach(), False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        return torch.ops.mkldnn._linear_pointwise(hidden, self.packed_weight, self.bias, "none", [], "")  # type: ignore[no-any-return]


def prepack_linears(model: nn.Module) -> int:
    """Swap every bfloat16 `nn.Linear` of a model on a CPU. Returns how many; each old weight is let go."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return 0
    swapped = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype is torch.bfloat16 and child.weight.device.type == "cpu":
                setattr(parent, name, PrepackedLinear(child))
                swapped += 1
    return swapped
