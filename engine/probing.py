"""Telling by random inputs whether two modules compute the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from infer.kernels.reference.rotary_store_kv import norm_heads, rotary_embedding

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.engine.attention import AttentionCall

_TOLERANCES = {torch.bfloat16: 2**-6, torch.float16: 2**-8, torch.float32: 2**-14}
"""Relative and absolute, for values about 1."""


class AttentionRecorder:
    """An attention that gives back the values of each head's group, and remembers what it was asked for, norms and
    rotary embedding applied."""

    logits_indices = None

    def __init__(self) -> None:
        self.call: AttentionCall | None = None
        self.unknown: dict[str, Any] = {}

    def attend(self, call: AttentionCall, unknown: dict[str, Any]) -> torch.Tensor:
        call.query, call.key = norm_heads(call.query, call.key, call.norms)
        if call.rotary is not None:
            call.query, call.key = (rotary_embedding(heads, *call.rotary) for heads in (call.query, call.key))
        self.call = call
        self.unknown = unknown
        return call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], 1)


def random_hidden(size: int, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """`[1, 3, size]`, the same at every call."""
    return torch.randn(1, 3, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)


def random_angles(
    head_dim: int, dtype: torch.dtype, device: torch.device | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """In the places of cosines and sines, `[1, 3, head_dim]` each, the same at every call."""
    cos, sin = torch.randn(2, 1, 3, head_dim, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    return cos, sin


def output_of(module: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """What `module` makes of the inputs; None where it does not take such inputs."""
    try:
        return module(*inputs, **named)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError):
        return None


def is_close(before: object, after: torch.Tensor) -> bool:
    """Up to what rounding makes of it."""
    if not isinstance(before, torch.Tensor) or before.shape != after.shape or before.dtype is not after.dtype:
        return False
    tolerance = _TOLERANCES[before.dtype]
    return torch.allclose(before.float(), after.float(), rtol=tolerance, atol=tolerance)
