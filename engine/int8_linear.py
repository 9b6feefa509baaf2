"""Int8Linear: a linear layer that its checkpoint has in int8, until it is known which layers are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from infer.engine.quantized_linear import QuantizedLinear
from infer.kernels.quantized_operands import QuantizedWeight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.kernels.backend import Backend


class Int8Linear(nn.Module):
    """Can be run, which lays its weight out anew each time: good enough to see what it computes."""

    bias: torch.Tensor | None

    def __init__(
        self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype, backend: Backend
    ) -> None:
        """`weight` is not packed."""
        super().__init__()
        self.in_features, self.out_features = weight.in_features, weight.out_features
        self.dtype = dtype
        self.elements = nn.Parameter(weight.elements, requires_grad=False)
        self.scales = nn.Parameter(weight.scales, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().to(dtype), requires_grad=False)
        self.backend = backend

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        return self.packed()(hidden)  # type: ignore[no-any-return]

    def packed(self) -> QuantizedLinear:
        """What is put in its place."""
        weight = QuantizedWeight(self.elements.data, self.scales.data, self.out_features, self.in_features)
        return QuantizedLinear(weight, self.bias, self.dtype, self.backend)


def merge_int8(linears: Sequence[Int8Linear]) -> Int8Linear:
    """One layer whose outputs are those of `linears`, one behind the other."""
    first = linears[0]
    elements = torch.cat([linear.elements.data for linear in linears])
    scales = torch.cat([linear.scales.data for linear in linears])
    biases = [linear.bias for linear in linears if linear.bias is not None]
    weight = QuantizedWeight(elements, scales, len(elements), first.in_features)
    return Int8Linear(weight, torch.cat(biases) if biases else None, first.dtype, first.backend)
