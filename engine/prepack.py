"""Linear layers on a CPU, their weights laid out once, for our kernels or oneDNN. The same for every architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn

from infer.engine.dequant_modules import DequantLinear, merge_dequantised
from infer.engine.int8_linear import Int8Linear, merge_int8
from infer.kernels.linear import linear, linear_kernels, why_not_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.engine.config import LinearBackend

    MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], nn.Module]

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that most architectures apply to the same input, under the names that transformers gives them."""


def prepack_linears(model: nn.Module, backend: LinearBackend = "auto") -> int:
    """Swap every `nn.Linear` of a model on a CPU, siblings together. Returns how many; the old weights are let go.

    `backend`: whose products they become; `auto` is whose are the fastest, and neither can serve every layer.
    """
    swapped = 0
    for parent in list(model.modules()):
        for names in _SIBLINGS:
            siblings = [getattr(parent, name, None) for name in names]
            is_dense = type(siblings[0]) is nn.Linear and can_merge(siblings)
            if is_dense and (make := _maker(siblings[0], backend)) is not None:
                parts = MergedLinears(siblings, make).parts()  # type: ignore[arg-type]
                for name, part in zip(names, parts, strict=True):
                    setattr(parent, name, part)
                swapped += len(names)
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and (make := _maker(child, backend)) is not None:
                setattr(parent, name, make(child.weight, child.bias))
                swapped += 1
    return swapped


def can_merge(modules: list[object]) -> bool:
    """Whether all are linear layers that differ by their weights and the number of outputs only."""
    kinds = {
        (type(module), module.in_features, module.bias is None, linear_dtype(module))
        for module in modules
        if is_linear(module)
    }
    return all(is_linear(module) for module in modules) and len(kinds) == 1


def is_linear(module: object) -> TypeGuard[nn.Linear | DequantLinear | Int8Linear]:
    return type(module) in (nn.Linear, DequantLinear, Int8Linear)


def linear_dtype(linear: nn.Linear | DequantLinear | Int8Linear) -> torch.dtype:
    """Of what it takes and gives."""
    return linear.weight.dtype if isinstance(linear, nn.Linear) else linear.dtype


def merge(linears: list[Any]) -> nn.Module:
    """One layer whose outputs are those of `linears`, which can be merged, one behind the other."""
    if isinstance(linears[0], DequantLinear):
        return merge_dequantised(linears)
    return merge_int8(linears) if isinstance(linears[0], Int8Linear) else merge_dense(linears)


def merge_dense(linears: list[nn.Linear]) -> nn.Linear:
    out_features = sum(linear.out_features for linear in linears)
    merged = nn.Linear(linears[0].in_features, out_features, linears[0].bias is not None, device="meta")
    merged.weight = nn.Parameter(torch.cat([linear.weight for linear in linears]), requires_grad=False)
    if merged.bias is not None:
        merged.bias = nn.Parameter(torch.cat([linear.bias for linear in linears]), requires_grad=False)
    return merged


class PackedLinear(nn.Module):
    """A linear layer whose weight is laid out once for our kernels. A row's result depends on no other row."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._kernels = linear_kernels("cpu")
        self._packed = self._kernels.pack(weight, bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        return linear(hidden, self._packed, kernels=self._kernels)


class OneDNNLinear(nn.Module):
    """A linear layer whose weight is laid out once for oneDNN, not again at every call.

    Bit-identical in bfloat16 to the layer it replaces; float32 layers are MKL's otherwise, and add in another order.
    oneDNN picks the layout for a number of rows; one that suits a full step serves the others as well.
    """

    _NUM_ROWS = 256

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer(
            "packed_weight", torch.ops.mkldnn._reorder_linear_weight(weight.detach(), self._NUM_ROWS), False
        )
        self.register_buffer("bias", None if bias is None else bias.detach(), False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        return torch.ops.mkldnn._linear_pointwise(hidden, self.packed_weight, self.bias, "none", [], "")  # type: ignore[no-any-return]


class MergedLinears:
    """Several linear layers over one input as one product. The first that is asked computes all; the others, asked with
    the very same tensor, take theirs. A layer that is asked with another one is right as well, only not faster."""

    def __init__(self, linears: list[nn.Linear], make: MakeLinear) -> None:
        merged = merge_dense(linears)
        self._linear = make(merged.weight, merged.bias)
        self._sizes = [linear.out_features for linear in linears]
        self._hidden: torch.Tensor | None = None
        self._outputs: dict[int, torch.Tensor] = {}

    def parts(self) -> list[MergedLinear]:
        """The modules to put in the places of the layers, in their order."""
        return [MergedLinear(self, index) for index in range(len(self._sizes))]

    def output(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """What layer `index` makes of `hidden`. Nothing is kept once each has been asked."""
        if hidden is not self._hidden or index not in self._outputs:
            self._hidden = hidden
            self._outputs = dict(enumerate(self._linear(hidden).split(self._sizes, -1)))
        output = self._outputs.pop(index)
        if not self._outputs:
            self._hidden = None
        return output


class MergedLinear(nn.Module):
    """One layer of a MergedLinears."""

    def __init__(self, merged: MergedLinears, index: int) -> None:
        super().__init__()
        self._merged = merged
        self._index = index

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., in_features]` to `[..., out_features]`, a view."""
        return self._merged.output(self._index, hidden)


def _maker(linear: object, backend: LinearBackend) -> MakeLinear | None:
    """What makes the layer to put in the place of `linear`; None where it is best left as it is."""
    assert isinstance(linear, nn.Linear), linear
    if linear.weight.device.type != "cpu":
        return None
    if backend != "onednn" and why_not_cpu(linear.weight.dtype, linear.in_features) is None:
        return PackedLinear
    if backend != "cpu" and _can_use_onednn(linear.weight.dtype):
        return OneDNNLinear
    return None


def _can_use_onednn(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
