"""Linear layers in int8, swapped after loading. The same for every architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from infer.engine.fused_layer import FusedDecoderLayer
from infer.engine.int8_linear import Int8Linear
from infer.engine.quantized_layer import QuantizedDecoderLayer, can_quantize_layer
from infer.engine.quantized_linear import QuantizedLinear
from infer.kernels.backend import select_backend
from infer.kernels.quant_linear import quantize_weight, rotation_of

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend

_ROUTERS = ("gate", "router", "shared_expert_gate")
"""Layers under these names choose among experts: few weights, on which much depends."""


@dataclass(frozen=True, slots=True)
class QuantizedPart:
    """How much of a model is quantised."""

    num_layers: int = 0
    """Linear layers, merged ones once."""
    share: float = 0.0
    """Of the weights that steps multiply with, which is all but embeddings that are looked up only."""

    def describe(self) -> str:
        return f"int8 weights in {self.num_layers:,} linear layers, {self.share:.0%} of what is multiplied"


def quantize_linears(model: nn.Module, backend: Backend, device: torch.device, dtype: torch.dtype) -> QuantizedPart:
    """Swap every `nn.Linear` of a model but those that choose among experts, and what else is gained by it; the old
    weights are let go. Experts whose weights are one tensor, and layers that are no `nn.Linear`, stay as they are."""
    if backend.fallback_reason is not None:
        # What keeps it from attention says nothing against linear layers.
        backend = select_backend(device, dtype, head_dim=64, block_size=16)
    num_layers, num_quantized = 0, 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and name not in _ROUTERS:
                setattr(parent, name, quantized(child, backend))
                num_layers += 1
                num_quantized += child.weight.numel()
    _quantize_layers(model, backend)
    return QuantizedPart(num_layers, num_quantized / max(1, num_quantized + _num_multiplied(model)))


def pack_int8_linears(model: nn.Module) -> None:
    """Make layers that their checkpoint has in int8 ready to run, and those around them hand on int8."""
    backend = None
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Int8Linear):
                setattr(parent, name, child.packed())
                backend = child.backend
    if backend is not None:
        _quantize_layers(model, backend)


def _quantize_layers(model: nn.Module, backend: Backend) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, FusedDecoderLayer) and can_quantize_layer(child):
                setattr(parent, name, QuantizedDecoderLayer(child, backend))


def quantized(linear: nn.Linear, backend: Backend) -> QuantizedLinear:
    """`linear` with int8 weights."""
    weight = quantize_weight(linear.weight, rotation=rotation_of(linear.in_features))
    return QuantizedLinear(weight, linear.bias, linear.weight.dtype, backend)


def _num_multiplied(model: nn.Module) -> int:
    """Weights of matrices that are not quantised, less embeddings."""
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    parameters: dict[int, Any] = {id(each): each for each in model.parameters() if each.dim() > 1}
    return sum(each.numel() for key, each in parameters.items() if key not in looked_up)
