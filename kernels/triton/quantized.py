"""Heads as elements with a scale each, and back, in registers: `infer.kernels.kv_pages` says which.

Elements are int8 to Triton, those of float8_e4m3fn too: they are taken apart as integers, which every GPU can and the
interpreter does as well.
"""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from infer.kernels.kv_pages import LARGEST, SMALLEST_PEAK

if TYPE_CHECKING:
    from infer.kernels.kv_pages import KVPages

_LARGEST_INT8 = tl.constexpr(LARGEST[torch.int8])
_LARGEST_FP8 = tl.constexpr(LARGEST[torch.float8_e4m3fn])
_SMALLEST_PEAK = tl.constexpr(SMALLEST_PEAK)

_UNITS = tl.constexpr(1.5 * 2**23)
"""A float32 of this size counts in ones: what is added to it is rounded to a whole number, in the lowest bits."""

_FP8_UNITS = tl.constexpr(2.0**14)
"""A float32 of this size counts in 2**-9, as the smallest of float8_e4m3fn do."""


class Layout(NamedTuple):
    """What the kernels are told of pages."""

    key: torch.Tensor
    value: torch.Tensor
    key_scales: torch.Tensor | None
    value_scales: torch.Tensor | None
    scale_block_stride: int
    scale_head_stride: int
    is_fp8: bool


def layout_of(pages: KVPages) -> Layout:
    is_fp8 = pages.key.dtype == torch.float8_e4m3fn
    key, value = (tensor.view(torch.int8) if is_fp8 else tensor for tensor in (pages.key, pages.value))
    block_stride, head_stride, _ = (0, 0, 1) if pages.key_scales is None else pages.key_scales.stride()
    return Layout(key, value, pages.key_scales, pages.value_scales, block_stride, head_stride, is_fp8)


@triton.jit
def quantize(heads: tl.tensor, is_fp8: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Elements of `heads`, `[num_heads, size]`, and scales, `[num_heads]`."""
    numbers = heads.to(tl.float32)
    # Without their signs, floats are in the order of their bits, a NaN above all.
    magnitudes = numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    floor = tl.full([1], _SMALLEST_PEAK, tl.float32).to(tl.int32, bitcast=True)
    peaks = tl.maximum(tl.max(magnitudes, 1), floor).to(tl.float32, bitcast=True)
    scales = tl.div_rn(peaks, tl.full([1], _LARGEST_FP8 if is_fp8 else _LARGEST_INT8, tl.float32))
    scaled = tl.div_rn(numbers, tl.broadcast_to(scales[:, None], numbers.shape))
    return fp8_bits(scaled) if is_fp8 else (scaled + _UNITS).to(tl.int32, bitcast=True).to(tl.int8), scales


@triton.jit
def fp8_bits(numbers: tl.tensor) -> tl.tensor:
    """To nearest, ties to even. Of a float32's 8 bits of exponent, offset by 127, and 23 of mantissa, 4, offset by 7,
    and 3 are left; what is below 2**-6 becomes a multiple of 2**-9."""
    bits = numbers.to(tl.int32, bitcast=True)
    magnitudes = bits & 0x7FFFFFFF
    rounded = ((magnitudes + ((magnitudes >> 20) & 1) + 0x7FFFF) >> 20) - ((127 - 7) << 3)
    counted = (magnitudes.to(tl.float32, bitcast=True) + _FP8_UNITS).to(tl.int32, bitcast=True)
    small = counted - tl.full([1], _FP8_UNITS, tl.float32).to(tl.int32, bitcast=True)
    magnitudes = tl.where(magnitudes < ((127 - 6) << 23), small, rounded)
    return (magnitudes | ((bits >> 24) & 0x80)).to(tl.int8)


@triton.jit
def fractions(elements: tl.tensor, is_fp8: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """Elements by the power of two that `load_scales` multiplies scales by. Of about 1, so that scales have the size of
    what they are the scales of, which a float16 holds. Nothing is rounded."""
    if is_fp8:
        # Sign, exponent and mantissa in the places of a float32's; then the offset of the exponent differs.
        bits = (elements.to(tl.int32) << 20) & -0x78100000
        return (bits.to(tl.float32, bitcast=True) * (2.0**120 / 256)).to(dtype)
    return (elements.to(tl.float32) * (1 / 128)).to(dtype)


@triton.jit
def load_scales(pointers: tl.tensor, mask: tl.tensor, is_fp8: tl.constexpr) -> tl.tensor:
    return tl.load(pointers, mask=mask, other=0.0) * (256.0 if is_fp8 else 128.0)
