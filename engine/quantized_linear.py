"""QuantizedLinear: a linear layer with an int8 weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from infer.kernels.quant_linear import pack_weight, quant_linear, quantize_tokens
from infer.kernels.quantized_operands import QuantizedTokens

if TYPE_CHECKING:
    from infer.kernels.backend import Backend
    from infer.kernels.quantized_operands import QuantizedWeight


class QuantizedLinear(nn.Module):
    """Takes hidden states as they are, or quantised by the same backend, which saves a pass over them."""

    bias: torch.Tensor | None

    def __init__(
        self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype, backend: Backend
    ) -> None:
        """`weight` is not packed yet; outputs are of `dtype`."""
        super().__init__()
        self.in_features, self.out_features = weight.in_features, weight.out_features
        self.dtype = dtype
        """Of hidden states and outputs."""
        self.wanted = (weight.elements.dtype, weight.rotation)
        """Of tokens that come quantised: their dtype and rotation."""
        self._weight = pack_weight(weight, backend=backend)
        self._backend = backend
        self.register_buffer("bias", None if bias is None else bias.detach().to(dtype), False)

    def forward(self, hidden: torch.Tensor | QuantizedTokens, residual: torch.Tensor | None = None) -> torch.Tensor:
        """`[..., in_features]` to `[..., out_features]`; `residual`, of that shape, is added."""
        if not isinstance(hidden, QuantizedTokens):
            hidden = quantize_tokens(hidden, *self.wanted, backend=self._backend)
        return quant_linear(hidden, self._weight, self.bias, residual, dtype=self.dtype, backend=self._backend)
