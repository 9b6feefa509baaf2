"""Modules swapped after loading for ones that run as fewer kernels. The same for every architecture.

The names that transformers gives say what a module may be; random inputs decide: it is swapped only where ours makes
the same of them, and then the answer changes by rounding at most.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from infer.engine.fused_attention import fuse_attention
from infer.engine.fused_layer import fuse_layer
from infer.engine.fused_modules import FusedGatedMLP, FusedRMSNorm, norm_eps
from infer.engine.prepack import can_merge, is_linear, linear_dtype
from infer.engine.probing import is_close, output_of, random_hidden

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.kernels.backend import Backend

_DTYPES = {
    "cpu": (torch.bfloat16, torch.float32),
    "triton": (torch.bfloat16, torch.float16, torch.float32),
}
"""Of the models whose modules a backend has kernels for."""


def fuse_kernels(model: nn.Module, backend: Backend) -> int:
    """Swap every RMS norm, SiLU-gated feed-forward layer and Llama-like attention layer, and then every layer made of
    these. Returns how many modules were swapped; none where the kernels are the reference's."""
    if backend.name not in _DTYPES:
        return 0
    return _swap(model, partial(_fuse_part, backend=backend)) + _swap(model, fuse_layer)


def _swap(model: nn.Module, fuse: Callable[[Any], nn.Module | None]) -> int:
    swapped = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            fused = fuse(child)
            if fused is not None:
                setattr(parent, name, fused)
                swapped += 1
    return swapped


def _fuse_part(module: Any, *, backend: Backend) -> nn.Module | None:
    """What `module` can be swapped for; None where it is of no known kind, or turns out to compute something else."""
    if _has_linears(module, backend, "q_proj", "k_proj", "v_proj", "o_proj"):
        return fuse_attention(module)
    if type(module).__name__.endswith("RMSNorm") and _suits_kernels(getattr(module, "weight", None), backend):
        eps = norm_eps(module)
        if eps is None:
            return None
        return _same(module, FusedRMSNorm(module.weight, eps, backend), len(module.weight), module.weight.dtype)
    if not _has_linears(module, backend, "gate_proj", "up_proj", "down_proj"):
        return None
    if can_merge([module.gate_proj, module.up_proj]):
        gate = module.gate_proj
        return _same(module, FusedGatedMLP(module, backend), gate.in_features, linear_dtype(gate))
    return None


@torch.inference_mode()
def _same(module: nn.Module, fused: nn.Module, size: int, dtype: torch.dtype) -> nn.Module | None:
    """`fused`, if it makes of a random input of this size and dtype what `module` makes of it."""
    hidden = random_hidden(size, dtype, next(chain(module.parameters(), module.buffers())).device)
    return fused if is_close(output_of(module, hidden), fused(hidden)) else None


def _has_linears(module: object, backend: Backend, *names: str) -> bool:
    linears = [getattr(module, name, None) for name in names]
    return all(
        is_linear(linear)
        and linear_dtype(linear) in _DTYPES[backend.name]
        and _is_reached_by(backend, next(chain(linear.parameters(), linear.buffers())))
        and linear.in_features % 16 == 0
        for linear in linears
    )


def _suits_kernels(weight: object, backend: Backend) -> bool:
    """Whether the kernels know its type, and can reach it, and its rows are whole vectors."""
    return (
        isinstance(weight, torch.Tensor)
        and weight.dtype in _DTYPES[backend.name]
        and _is_reached_by(backend, weight)
        and weight.shape[-1] % 16 == 0
    )


def _is_reached_by(backend: Backend, tensor: torch.Tensor) -> bool:
    return backend.name != "cpu" or tensor.device.type == "cpu"
