"""Which implementation of the kernels serves a device: an explicit table. A module is imported when it is chosen."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.grouped_weight import GroupedWeight
    from infer.kernels.head_norms import HeadNorms
    from infer.kernels.kv_pages import KVPages
    from infer.kernels.quant_kernels import QuantKernels
    from infer.kernels.sampling import DrawParameters

BackendName = Literal["reference", "cpu", "triton"]

_FASTEST: dict[str, BackendName] = {"cpu": "cpu", "cuda": "triton"}
"""By device type; the reference serves every other device, and what these cannot."""


class AllocateKVCache(Protocol):
    """Zero-filled pages of `cache_dtype` for keys and values of `dtype`."""

    def __call__(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        value_head_dim: int,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
        device: torch.device,
    ) -> KVPages: ...


class StoreKV(Protocol):
    """See `infer.kernels.store_kv`."""

    def __call__(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
    ) -> None: ...


class PagedAttention(Protocol):
    """See `infer.kernels.paged_attention`."""

    def __call__(
        self,
        query: torch.Tensor,
        pages: KVPages,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int = 0,
        softcap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


class RMSNorm(Protocol):
    """See `infer.kernels.rms_norm`."""

    def __call__(self, hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...


class AddRMSNorm(Protocol):
    """See `infer.kernels.rms_norm`."""

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class RotaryStoreKV(Protocol):
    """See `infer.kernels.rotary_store_kv`."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        pages: KVPages,
        slot_mapping: torch.Tensor,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor: ...


class SiluAndMul(Protocol):
    """See `infer.kernels.activation`."""

    def __call__(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor: ...


class SampleTokens(Protocol):
    """See `infer.kernels.sampling`."""

    def __call__(self, logits: torch.Tensor, parameters: DrawParameters) -> torch.Tensor: ...


class DequantLinear(Protocol):
    """See `infer.kernels.dequant_linear`."""

    def __call__(
        self, hidden: torch.Tensor, weights: Sequence[GroupedWeight], bias: torch.Tensor | None = None
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of the kernels. A cache is only understood by the backend that allocated it."""

    name: BackendName
    allocate_kv_cache: AllocateKVCache
    store_kv: StoreKV
    rotary_store_kv: RotaryStoreKV
    paged_attention: PagedAttention
    rms_norm: RMSNorm
    add_rms_norm: AddRMSNorm
    silu_and_mul: SiluAndMul
    sample_tokens: SampleTokens
    dequant_linear: DequantLinear
    quant: QuantKernels
    fallback_reason: str | None = None
    """Why the device's fastest implementation was not taken, where it was not."""


def select_backend(
    device: torch.device,
    dtype: torch.dtype,
    *,
    head_dim: int,
    block_size: int,
    value_head_dim: int | None = None,
    cache_dtype: torch.dtype | None = None,
    preferred: str = "auto",
) -> Backend:
    """The fastest implementation that can serve such tensors, or the `preferred` one.

    `value_head_dim` is `head_dim` unless given, `cache_dtype` is `dtype`.

    Raises:
        ValueError: `preferred` is no implementation, or cannot serve them.
    """
    allowed = get_args(BackendName)
    if preferred not in ("auto", *allowed):
        raise ValueError(f"attention backend must be one of auto, {', '.join(allowed)}: {preferred}")
    name = _FASTEST.get(device.type, "reference") if preferred == "auto" else preferred
    reason = _why_not(name, device, dtype, cache_dtype or dtype, head_dim, value_head_dim or head_dim, block_size)
    if reason is None:
        return _load(name)
    if preferred != "auto":
        raise ValueError(f"attention backend {name} cannot be used: {reason}")
    return replace(_load("reference"), fallback_reason=f"{name} attention cannot be used: {reason}")


def _why_not(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    head_dim: int,
    value_head_dim: int,
    block_size: int,
) -> str | None:
    """What keeps an implementation from serving such tensors; None if nothing does."""
    if name == "cpu":
        if device.type != "cpu":
            return f"it serves CPU tensors only: {device}"
        if importlib.util.find_spec("numba") is None:
            return "numba is not installed"
        from infer.kernels import cpu

        return cpu.why_not(dtype, cache_dtype, head_dim, value_head_dim, block_size)
    if name == "triton":
        if device.type != "cuda":
            return f"it serves CUDA tensors only: {device}"
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        from infer.kernels import triton

        return triton.why_not(dtype, cache_dtype, device)
    return None


def _load(name: str) -> Backend:
    from infer.kernels import reference

    if name == "cpu":
        from infer.kernels import cpu
        from infer.kernels.argmax import argmax

        return Backend(
            "cpu",
            cpu.allocate_kv_cache,
            cpu.store_kv,
            cpu.rotary_store_kv,
            cpu.paged_attention,
            cpu.rms_norm,
            cpu.add_rms_norm,
            cpu.silu_and_mul,
            partial(reference.sample_tokens, find_maxima=argmax),
            cpu.dequant_linear,
            cpu.QUANT_KERNELS,
        )
    if name == "triton":
        from infer.kernels import triton

        return Backend(
            "triton",
            triton.allocate_kv_cache,
            triton.store_kv,
            triton.rotary_store_kv,
            triton.paged_attention,
            triton.rms_norm,
            triton.add_rms_norm,
            triton.silu_and_mul,
            triton.sample_tokens,
            reference.dequant_linear,
            triton.QUANT_KERNELS,
        )
    return Backend(
        "reference",
        reference.allocate_kv_cache,
        reference.store_kv,
        reference.rotary_store_kv,
        reference.paged_attention,
        reference.rms_norm,
        reference.add_rms_norm,
        reference.silu_and_mul,
        reference.sample_tokens,
        reference.dequant_linear,
        reference.QUANT_KERNELS,
    )
