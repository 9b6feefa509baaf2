"""linear and gated_linear: products with weights that were laid out once, and what follows them in the same pass."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from infer.kernels.operators import Work, operator

if TYPE_CHECKING:
    import torch

LinearKernelsName = Literal["reference", "cpu"]


class Pack(Protocol):
    """Lays out a weight `[out_features, in_features]` and its bias, for `linear` of the same kernels."""

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Any: ...


class PackGated(Protocol):
    """Lays out two weights of one shape as one; both have a bias, or neither."""

    def __call__(
        self, gate: torch.Tensor, up: torch.Tensor, gate_bias: torch.Tensor | None, up_bias: torch.Tensor | None
    ) -> Any: ...


class Linear(Protocol):
    """See `linear`."""

    def __call__(self, hidden: torch.Tensor, packed: Any, residual: torch.Tensor | None = None, /) -> torch.Tensor: ...


class GatedLinear(Protocol):
    """See `gated_linear`."""

    def __call__(self, hidden: torch.Tensor, packed: Any, /) -> torch.Tensor: ...


class NormLinear(Protocol):
    """See `norm_linear`."""

    def __call__(self, hidden: torch.Tensor, weight: torch.Tensor, eps: float, packed: Any, /) -> torch.Tensor: ...


class OutputAndMLP(Protocol):
    """See `output_and_mlp`."""

    def __call__(
        self,
        attended: torch.Tensor,
        hidden: torch.Tensor,
        o_proj: Any,
        weight: torch.Tensor,
        eps: float,
        gate_up: Any,
        down: Any,
        /,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class LinearKernels:
    """One implementation."""

    name: LinearKernelsName
    pack: Pack
    pack_gated: PackGated
    linear: Linear
    gated_linear: GatedLinear
    norm_linear: NormLinear
    output_and_mlp: OutputAndMLP


@operator(Work.GEMM)
def linear(
    hidden: torch.Tensor, packed: Any, residual: torch.Tensor | None = None, *, kernels: LinearKernels
) -> torch.Tensor:
    """`hidden @ weight.T + bias`, accumulated in float32 and rounded to the dtype; then `residual` added and rounded.

    hidden: `[..., in_features]`
    packed: by `kernels.pack`, of the same dtype
    residual: `[..., out_features]`

    The CPU's result for a row does not depend on the other rows, nor on how many there are.
    """
    return kernels.linear(hidden, packed, residual)


@operator(Work.GEMM)
def gated_linear(hidden: torch.Tensor, packed: Any, *, kernels: LinearKernels) -> torch.Tensor:
    """`silu(hidden @ gate.T) * (hidden @ up.T)`: each product as of `linear`, then as of `silu_and_mul`.

    packed: by `kernels.pack_gated`
    """
    return kernels.gated_linear(hidden, packed)


@operator(Work.GEMM)
def norm_linear(
    hidden: torch.Tensor, weight: torch.Tensor, eps: float, packed: Any, *, kernels: LinearKernels
) -> torch.Tensor:
    """`linear(rms_norm(hidden, weight, eps), packed)`."""
    return kernels.norm_linear(hidden, weight, eps, packed)


@operator(Work.GEMM)
def output_and_mlp(
    attended: torch.Tensor,
    hidden: torch.Tensor,
    o_proj: Any,
    weight: torch.Tensor,
    eps: float,
    gate_up: Any,
    down: Any,
    *,
    kernels: LinearKernels,
) -> torch.Tensor:
    """What a Llama-like layer does behind its attention: `total = o_proj(attended) + hidden`, and
    `total + down(gated(rms_norm(total)))`.

    attended: `[..., heads * head_dim]`; hidden: `[..., hidden_size]`
    weight, eps: of the norm
    """
    return kernels.output_and_mlp(attended, hidden, o_proj, weight, eps, gate_up, down)


def why_not_cpu(dtype: torch.dtype, in_features: int) -> str | None:
    """What keeps the CPU's implementation from being the fastest for such a layer; None if nothing does."""
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    from infer.kernels.cpu.panels import why_not

    return why_not(dtype, in_features)


def linear_kernels(name: LinearKernelsName) -> LinearKernels:
    if name == "cpu":
        from infer.kernels.cpu import layer_parts, panels
        from infer.kernels.cpu import linear as cpu

        return LinearKernels(
            "cpu",
            panels.pack,
            panels.pack_gated,
            cpu.linear,
            cpu.gated_linear,
            layer_parts.norm_linear,
            layer_parts.output_and_mlp,
        )
    from infer.kernels.reference import linear as reference

    return LinearKernels(
        "reference",
        reference.pack,
        reference.pack_gated,
        reference.linear,
        reference.gated_linear,
        reference.norm_linear,
        reference.output_and_mlp,
    )
