"""Tokens of hidden states, or of an activation, as int8 or fp8 with a scale each, on a GPU."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

import torch
import triton
import triton.language as tl

from infer.kernels.quantized_operands import LARGEST, SMALLEST_PEAK, QuantizedTokens
from infer.kernels.triton.activation import silu
from infer.kernels.triton.quantized import fp8_bits
from infer.kernels.triton.row_tile import row_tile

_LARGEST_INT8 = tl.constexpr(LARGEST[torch.int8])
_LARGEST_FP8 = tl.constexpr(LARGEST[torch.float8_e4m3fn])
_SMALLEST_PEAK = tl.constexpr(SMALLEST_PEAK)

_UNITS = tl.constexpr(1.5 * 2**23)
"""A float32 of this size counts in ones: what is added to it is rounded to a whole number, in the lowest bits."""


def quantize_tokens(hidden: torch.Tensor, dtype: torch.dtype) -> QuantizedTokens:
    """As `infer.kernels.quant_linear.quantize_tokens`."""
    return _quantize(hidden, None, dtype)


def quantized_silu_and_mul(gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype) -> QuantizedTokens:
    """As `infer.kernels.quantized_outputs.quantized_silu_and_mul`."""
    return _quantize(gate, up, dtype)


def empty_tokens(hidden: torch.Tensor, dtype: torch.dtype) -> QuantizedTokens:
    """For what becomes of `hidden`, contiguous."""
    elements = torch.empty(hidden.shape, dtype=dtype, device=hidden.device)
    return QuantizedTokens(elements, elements.new_empty(hidden.shape[:-1], dtype=torch.float32), hidden.shape[-1])


def _quantize(hidden: torch.Tensor, up: torch.Tensor | None, dtype: torch.dtype) -> QuantizedTokens:
    tokens = empty_tokens(hidden, dtype)
    size = hidden.shape[-1]
    rows = hidden.reshape(-1, size)
    up_rows = rows if up is None else up.reshape(-1, size)
    assert rows.stride(1) == up_rows.stride(1) == 1, (rows.stride(), up_rows.stride())
    if len(rows):
        tile = row_tile(size)
        quantize_rows_kernel[(triton.cdiv(len(rows), tile.num_rows),)](
            tokens.elements.view(torch.int8),
            tokens.scales,
            rows,
            None if up is None else up_rows,
            len(rows),
            rows.stride(0),
            up_rows.stride(0),
            is_fp8=dtype is torch.float8_e4m3fn,
            size=size,
            size_padded=tile.size_padded,
            rows_per_program=tile.num_rows,
            num_warps=tile.num_warps,
            enable_fp_fusion=False,  # elements are rounded as the reference does
        )
    return tokens


@triton.jit(do_not_specialize=["num_rows"])
def quantize_rows_kernel(
    elements_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    hidden_ptr: tl.tensor,
    up_ptr: tl.tensor | None,
    num_rows: tl.tensor,
    hidden_row_stride: tl.tensor,
    up_row_stride: tl.tensor,
    is_fp8: tl.constexpr,
    size: tl.constexpr,
    size_padded: tl.constexpr,
    rows_per_program: tl.constexpr,
) -> None:
    """Program `[row tile]`. With `up`, of `silu(hidden) * up`."""
    rows = tl.program_id(0).to(tl.int64) * rows_per_program + tl.arange(0, rows_per_program)
    columns = tl.arange(0, size_padded)
    is_row = rows < num_rows
    mask = is_row[:, None] & (columns < size)[None, :]
    hidden = tl.load(hidden_ptr + rows[:, None] * hidden_row_stride + columns[None, :], mask=mask, other=0.0)
    if up_ptr is not None:
        up = tl.load(up_ptr + rows[:, None] * up_row_stride + columns[None, :], mask=mask, other=0.0)
        hidden = (silu(hidden).to(tl.float32) * up.to(tl.float32)).to(hidden.dtype)
    elements, scales = quantize_rows(hidden, is_fp8)
    tl.store(elements_ptr + rows[:, None] * size + columns[None, :], elements, mask=mask)
    tl.store(scales_ptr + rows, scales, mask=is_row)


@triton.jit
def quantize_rows(hidden: tl.tensor, is_fp8: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Elements as int8, those of float8_e4m3fn too, and scales of `[num_rows, size]`. A NaN makes the scale NaN."""
    numbers = hidden.to(tl.float32)
    # Without their signs, floats are in the order of their bits, a NaN above all.
    magnitudes = numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    floor = tl.full([1], _SMALLEST_PEAK, tl.float32).to(tl.int32, bitcast=True)
    peaks = tl.maximum(tl.max(magnitudes, 1), floor).to(tl.float32, bitcast=True)
    largest = tl.full([1], _LARGEST_FP8 if is_fp8 else _LARGEST_INT8, tl.float32)
    scaled = numbers * tl.div_rn(tl.broadcast_to(largest, peaks.shape), peaks)[:, None]
    elements = fp8_bits(scaled) if is_fp8 else (scaled + _UNITS).to(tl.int32, bitcast=True).to(tl.int8)
    return elements, tl.div_rn(peaks, tl.broadcast_to(largest, peaks.shape))
