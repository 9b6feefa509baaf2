"""silu_and_mul: the gated activation of a feed-forward layer (Shazeer 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.operators import Work, operator

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend


@operator(Work.OTHER)
def silu_and_mul(gate: torch.Tensor, up: torch.Tensor, *, backend: Backend) -> torch.Tensor:
    """`silu(gate) * up`, the first factor computed in float32 and rounded to the dtype.

    gate, up: `[..., size]`, size a multiple of 16; rows may lie apart, their elements not

    Returns a contiguous tensor of that shape.
    """
    assert gate.shape == up.shape, (gate.shape, up.shape)
    assert gate.dtype == up.dtype, (gate.dtype, up.dtype)
    assert gate.stride()[-1] == up.stride()[-1] == 1, (gate.stride(), up.stride())
    return backend.silu_and_mul(gate, up)
