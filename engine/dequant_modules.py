"""Layers whose weights stay in the few bits of their checkpoint: DequantLinear and DequantEmbedding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from infer.kernels.dequant_linear import dequant_linear
from infer.kernels.grouped_weight import GroupedWeight, join_weights, unpack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.kernels.backend import Backend


class DequantLinear(nn.Module):
    """Gives what a linear layer gives whose weight is dequantised and rounded to `dtype`."""

    bias: torch.Tensor | None

    def __init__(
        self, weights: Sequence[GroupedWeight], bias: torch.Tensor | None, dtype: torch.dtype, backend: Backend
    ) -> None:
        """The rows of one weight lie behind those of another."""
        super().__init__()
        self.in_features = weights[0].in_features
        self.out_features = sum(weight.out_features for weight in weights)
        self.dtype = dtype
        self.weights = tuple(weights)
        self._backend = backend
        self.bias = None if bias is None else nn.Parameter(bias.detach().to(dtype), requires_grad=False)
        _register(self, self.weights)

    @property
    def num_weights(self) -> int:
        return self.in_features * self.out_features

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        return dequant_linear(hidden, self.weights, self.bias, backend=self._backend)


class DequantEmbedding(nn.Module):
    """Gives what an embedding gives whose weight is dequantised and rounded to `dtype`."""

    def __init__(self, weight: GroupedWeight, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self._weight = weight
        _register(self, (weight,))

    @property
    def num_weights(self) -> int:
        return self._weight.in_features * self._weight.out_features

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """`[...]` to `[..., hidden_size]`."""
        rows = unpack_rows(self._weight, token_ids.flatten())
        return rows.to(self.dtype).view(*token_ids.shape, self._weight.in_features)


def merge_dequantised(linears: Sequence[DequantLinear]) -> DequantLinear:
    """One layer whose outputs are those of `linears`, one behind the other."""
    first = linears[0]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    joined = join_weights([weight for linear in linears for weight in linear.weights])
    weights = [as_parameters(weight) for weight in joined]
    return DequantLinear(weights, torch.cat(biases) if biases else None, first.dtype, first._backend)


def count_weights(model: nn.Module) -> int:
    """Numbers that a model's weights stand for, shared ones once."""
    counted: dict[tuple[int, ...], int] = {}
    for module in model.modules():
        own = tuple(id(parameter) for parameter in module.parameters(recurse=False))
        if isinstance(module, DequantLinear | DequantEmbedding):
            counted[own[-1:]] = module.num_weights
        else:
            counted |= {(id(parameter),): parameter.numel() for parameter in module.parameters(recurse=False)}
    return sum(counted.values())


def _register(module: nn.Module, weights: Sequence[GroupedWeight]) -> None:
    """Makes the tensors of `weights` the module's, so that they are found among its parameters, shared ones once."""
    for number, weight in enumerate(weights):
        for name, tensor in weight.tensors.items():
            assert isinstance(tensor, nn.Parameter), name
            module.register_parameter(f"{name}_{number}", tensor)


def as_parameters(weight: GroupedWeight) -> GroupedWeight:
    """The same weight, of tensors that modules may share."""
    tensors: dict[str, Any] = {
        name: nn.Parameter(tensor, requires_grad=False) for name, tensor in weight.tensors.items()
    }
    return replace(weight, **tensors)
