"""QuantKernels: what a backend brings along for quantised linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from infer.kernels.quantized_operands import QuantizedTokens, QuantizedWeight


class PackWeight(Protocol):
    """See `infer.kernels.quant_linear`; so for the next two."""

    def __call__(self, weight: QuantizedWeight) -> QuantizedWeight: ...


class QuantizeTokens(Protocol):
    def __call__(self, hidden: torch.Tensor, dtype: torch.dtype) -> QuantizedTokens: ...


class QuantLinear(Protocol):
    def __call__(
        self,
        tokens: QuantizedTokens,
        weight: QuantizedWeight,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> torch.Tensor: ...


class QuantizedRMSNorm(Protocol):
    """See `infer.kernels.quantized_outputs`; so for the rest."""

    def __call__(
        self, hidden: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
    ) -> QuantizedTokens: ...


class QuantizedAddRMSNorm(Protocol):
    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[torch.Tensor, QuantizedTokens]: ...


class QuantizedSiluAndMul(Protocol):
    def __call__(self, gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype) -> QuantizedTokens: ...


class RotateAndQuantizeTokens(Protocol):
    """As `QuantizeTokens`, and so the rest, of rotated tokens."""

    def __call__(self, hidden: torch.Tensor, dtype: torch.dtype, rotation: int) -> QuantizedTokens: ...


class RotatedRMSNorm(Protocol):
    def __call__(
        self, hidden: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype, rotation: int
    ) -> QuantizedTokens: ...


class RotatedAddRMSNorm(Protocol):
    def __call__(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
        rotation: int,
    ) -> tuple[torch.Tensor, QuantizedTokens]: ...


class RotatedSiluAndMul(Protocol):
    def __call__(self, gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype, rotation: int) -> QuantizedTokens: ...


@dataclass(frozen=True, slots=True)
class RotatedKernels:
    """What makes quantised tokens, with the rotation before in the same pass."""

    quantize_tokens: RotateAndQuantizeTokens
    quantized_rms_norm: RotatedRMSNorm
    quantized_add_rms_norm: RotatedAddRMSNorm
    quantized_silu_and_mul: RotatedSiluAndMul


@dataclass(frozen=True, slots=True)
class QuantKernels:
    """One implementation. Tokens and packed weights are only understood by the one that made them."""

    pack_weight: PackWeight
    quantize_tokens: QuantizeTokens
    quant_linear: QuantLinear
    quantized_rms_norm: QuantizedRMSNorm
    quantized_add_rms_norm: QuantizedAddRMSNorm
    quantized_silu_and_mul: QuantizedSiluAndMul
    rotated: RotatedKernels | None = None
    """None: tokens are rotated by the reference first."""
