"""Modules swapped after loading for faster ones that compute the same. The same for every architecture.

All swaps concern bfloat16 models on a CPU; the answer changes by rounding at most. Norms and gated layers are
recognised by what they do: a module is swapped where ours gives the same for random inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from infer.engine.fused_attention import fuse_attention
from infer.kernels.activation import silu_and_mul
from infer.kernels.rms_norm import rms_norm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infer.kernels.backend import Backend

_GATED = ("gate_proj", "up_proj", "down_proj")
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that most architectures apply to the same input, under the names that transformers gives them."""


def prepack_linears(model: nn.Module) -> int:
    """Swap every bfloat16 `nn.Linear` of a model on a CPU, siblings together. Returns how many; the old weights are let
    go."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return 0
    swapped = 0
    for parent in list(model.modules()):
        for names in _SIBLINGS:
            siblings = [getattr(parent, name, None) for name in names]
            if _can_merge(siblings):
                parts = MergedLinears(siblings).parts()  # type: ignore[arg-type]
                for name, part in zip(names, parts, strict=True):
                    setattr(parent, name, part)
                swapped += len(names)
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and _is_eligible(child):
                setattr(parent, name, PrepackedLinear(child.weight, child.bias))
                swapped += 1
    return swapped


def fuse_kernels(model: nn.Module, backend: Backend) -> int:
    """Swap every RMS norm, every SiLU-gated feed-forward layer and every Llama-like attention layer of a bfloat16 model
    whose kernels are the CPU's. Returns how many."""
    if backend.name != "cpu":
        return 0
    swapped = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            fused = _fused(child, backend)
            if fused is not None:
                setattr(parent, name, fused)
                swapped += 1
    return swapped


class FusedRMSNorm(nn.Module):
    """An RMS norm as one kernel."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor, eps: float, backend: Backend) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach(), False)
        self._eps = eps
        self._backend = backend

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., size]`"""
        return rms_norm(hidden, self.weight, self._eps, backend=self._backend)


class FusedGatedMLP(nn.Module):
    """`down_proj(silu(gate_proj(hidden)) * up_proj(hidden))`, activation and product as one kernel."""

    def __init__(self, mlp: Any, backend: Backend) -> None:
        super().__init__()
        self.gate_proj: nn.Module = mlp.gate_proj
        self.up_proj: nn.Module = mlp.up_proj
        self.down_proj: nn.Module = mlp.down_proj
        self._backend = backend

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[..., hidden_size]`"""
        gated: torch.Tensor = silu_and_mul(self.gate_proj(hidden), self.up_proj(hidden), backend=self._backend)
        output: torch.Tensor = self.down_proj(gated)
        return output


class PrepackedLinear(nn.Module):
    """A linear layer whose weight is laid out once for oneDNN, not again at every call.

    Bit-identical to the layer it replaces. oneDNN picks the layout for a number of rows; one that suits a full step
    serves the others as well.
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

    def __init__(self, linears: list[nn.Linear]) -> None:
        biases = [linear.bias for linear in linears]
        bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
        self._linear = PrepackedLinear(torch.cat([linear.weight.detach() for linear in linears]), bias)
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


def _is_eligible(module: object) -> bool:
    return type(module) is nn.Linear and module.weight.dtype is torch.bfloat16 and module.weight.device.type == "cpu"


def _can_merge(modules: list[object]) -> bool:
    linears: Iterator[nn.Linear] = (module for module in modules if isinstance(module, nn.Linear))
    kinds = {(linear.in_features, linear.bias is None) for linear in linears}
    return all(map(_is_eligible, modules)) and len(kinds) == 1


def _fused(module: Any, backend: Backend) -> nn.Module | None:
    """What `module` can be swapped for; None where it is of no known kind, or turns out to compute something else."""
    fused: nn.Module | None
    if all(_suits_kernels(getattr(getattr(module, name, None), "weight", None)) for name in _SIBLINGS[0]):
        return fuse_attention(module, backend)
    if type(module).__name__.endswith("RMSNorm") and _suits_kernels(getattr(module, "weight", None)):
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not isinstance(eps, float):
            return None
        fused, size = FusedRMSNorm(module.weight, eps, backend), module.weight.shape[0]
    elif all(_suits_kernels(getattr(getattr(module, name, None), "weight", None)) for name in _GATED):
        fused, size = FusedGatedMLP(module, backend), module.gate_proj.in_features
    else:
        return None
    probe = torch.randn(1, 3, size, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with torch.inference_mode():
        return fused if torch.allclose(fused(probe), module(probe), rtol=2**-6, atol=2**-6) else None


def _suits_kernels(weight: object) -> bool:
    """Whether it is on a CPU, in bfloat16, and its rows are whole vectors."""
    return (
        isinstance(weight, torch.Tensor)
        and weight.dtype is torch.bfloat16
        and weight.device.type == "cpu"
        and weight.shape[-1] % 16 == 0
    )
