"""The operators besides attention as models of several sizes launch them, for `triton_resources`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from infer.kernels import triton as triton_kernels
from infer.kernels.head_norms import HeadNorms
from infer.kernels.quantized_operands import QuantizedTokens, QuantizedWeight
from infer.kernels.sampling import NUM_DRAW_PARAMETERS, DrawParameters

if TYPE_CHECKING:
    from collections.abc import Callable

META = torch.device("meta")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
QUANTIZED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
NUM_TOKENS = 512
SIZES = (576, 4096, 16384)
"""Of hidden states: SmolLM2-135M, Llama-3.1-8B and -405B."""


def cases() -> dict[str, Callable[[], object]]:
    """By name: operator, dtype, size, and what else differs."""
    cases: dict[str, Callable[[], object]] = {}
    for size in SIZES:
        cases[f"norm bf16 {size}"] = partial(_norm, size)
        cases[f"add norm bf16 {size}"] = partial(_add_norm, size)
        cases[f"quantised norm bf16 {size} int8"] = partial(_quantised_add_norm, size, torch.int8)
    cases["norm bf16 128"] = partial(_norm, 128)
    cases["norm fp32 4096"] = partial(_norm, 4096, torch.float32)
    cases["quantised norm bf16 4096 fp8"] = partial(_quantised_add_norm, 4096, torch.float8_e4m3fn)
    for size in (1536, 14336):
        cases[f"silu bf16 {size}"] = partial(_silu, size)
        for name, dtype in QUANTIZED.items():
            cases[f"quantised silu bf16 {size} {name}"] = partial(_quantised_silu, size, dtype)
            cases[f"quantise bf16 {size} {name}"] = partial(_quantise, size, dtype)
    for head_dim in (64, 80, 128, 256):
        cases[f"rotary bf16 d{head_dim}"] = partial(_rotary, head_dim)
        cases[f"rotary bf16 d{head_dim} norms"] = partial(_rotary, head_dim, has_norms=True)
    for name, dtype in QUANTIZED.items():
        cases[f"rotary bf16 d128 norms {name}"] = partial(_rotary, 128, has_norms=True, cache_dtype=dtype)
    for name, dtype in DTYPES.items():
        cases[f"sample {name} 128256"] = partial(_sample, 128256, dtype)
    cases["sample bf16 49152"] = partial(_sample, 49152, torch.bfloat16)
    for num_tokens in (1, 32, 64, 512):
        for rest in ("", " bias", " residual"):
            cases[f"linear int8 bf16 m{num_tokens}{rest}"] = partial(_linear, num_tokens, torch.int8, rest.strip())
    for size in (300, 576):
        cases[f"linear int8 bf16 m512 k{size}"] = partial(_linear, 512, torch.int8, size=size)
    for num_tokens in (1, 32, 64, 512):
        cases[f"linear fp8 bf16 m{num_tokens}"] = partial(_linear, num_tokens, torch.float8_e4m3fn)
    return cases


def is_served(case: str, capability: int) -> bool:
    """Whether such a GPU has the instructions: products of fp8 came with 8.9."""
    return capability >= 89 or not case.startswith("linear fp8")


QUICK = [
    ("norm bf16 4096", 90),
    ("add norm bf16 576", 80),
    ("quantised norm bf16 4096 int8", 90),
    ("silu bf16 14336", 90),
    ("quantised silu bf16 14336 int8", 90),
    ("rotary bf16 d128 norms", 90),
    ("rotary bf16 d128 norms fp8", 80),
    ("sample bf16 128256", 90),
    ("linear int8 bf16 m1", 90),
    ("linear int8 bf16 m512", 80),
    ("linear int8 bf16 m512", 90),
    ("linear fp8 bf16 m512", 90),
]


def _tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _norm(size: int, dtype: torch.dtype = torch.bfloat16) -> None:
    triton_kernels.rms_norm(_tensor(NUM_TOKENS, size, dtype=dtype), _tensor(size, dtype=dtype), 1e-5)


def _add_norm(size: int) -> None:
    hidden = _tensor(NUM_TOKENS, size)
    triton_kernels.add_rms_norm(hidden, hidden, _tensor(size), 1e-5)


def _quantised_add_norm(size: int, dtype: torch.dtype) -> None:
    hidden = _tensor(NUM_TOKENS, size)
    triton_kernels.QUANT_KERNELS.quantized_add_rms_norm(hidden, hidden, _tensor(size), 1e-5, dtype)


def _silu(size: int) -> None:
    triton_kernels.silu_and_mul(*_tensor(NUM_TOKENS, 2 * size).chunk(2, -1))


def _quantised_silu(size: int, dtype: torch.dtype) -> None:
    triton_kernels.QUANT_KERNELS.quantized_silu_and_mul(*_tensor(NUM_TOKENS, 2 * size).chunk(2, -1), dtype)


def _quantise(size: int, dtype: torch.dtype) -> None:
    triton_kernels.QUANT_KERNELS.quantize_tokens(_tensor(NUM_TOKENS, size), dtype)


def _rotary(head_dim: int, has_norms: bool = False, cache_dtype: torch.dtype | None = None) -> None:
    num_heads, num_kv_heads = 32, 8
    product = _tensor(NUM_TOKENS, num_heads + 2 * num_kv_heads, head_dim)
    query, key, value = product.split([num_heads, num_kv_heads, num_kv_heads], 1)
    pages = triton_kernels.allocate_kv_cache(
        1024, 16, num_kv_heads, head_dim, head_dim, torch.bfloat16, cache_dtype or torch.bfloat16, META
    )
    cos, sin = _tensor(NUM_TOKENS, head_dim), _tensor(NUM_TOKENS, head_dim)
    slots = _tensor(NUM_TOKENS, dtype=torch.int64)
    norms = HeadNorms(_tensor(head_dim), _tensor(head_dim), 1e-6) if has_norms else None
    triton_kernels.rotary_store_kv(query, key, value, cos, sin, pages, slots, norms)


def _sample(vocab_size: int, dtype: torch.dtype) -> None:
    """Launches all three kernels."""
    parameters = DrawParameters(_tensor(NUM_DRAW_PARAMETERS, 256, dtype=torch.float64), True, True)
    triton_kernels.sample_tokens(_tensor(256, vocab_size, dtype=dtype), parameters)


def _linear(num_tokens: int, dtype: torch.dtype, rest: str = "", size: int = 4096) -> None:
    num_channels = 6144
    tokens = QuantizedTokens(_tensor(num_tokens, size, dtype=dtype), _tensor(num_tokens, dtype=torch.float32), size)
    scales = _tensor(num_channels, dtype=torch.float32)
    weight = QuantizedWeight(_tensor(num_channels, size, dtype=dtype), scales, num_channels, size)
    bias = _tensor(num_channels) if rest == "bias" else None
    residual = _tensor(num_tokens, num_channels) if rest == "residual" else None
    triton_kernels.QUANT_KERNELS.quant_linear(tokens, weight, bias, residual, torch.bfloat16)
