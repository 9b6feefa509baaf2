"""rms_norm and add_rms_norm on a GPU: a row is read once and stays in the registers of its program; and the same with
their results quantised before they leave these."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from infer.kernels.triton.quantized_rows import empty_tokens, quantize_rows
from infer.kernels.triton.row_tile import row_tile

if TYPE_CHECKING:
    from infer.kernels.quantized_operands import QuantizedTokens


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `infer.kernels.rms_norm.rms_norm`."""
    output = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    _launch(output, None, None, hidden, None, weight, eps)
    return output


def add_rms_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `infer.kernels.rms_norm.add_rms_norm`."""
    total, output = torch.empty((2, *hidden.shape), dtype=hidden.dtype, device=hidden.device)
    _launch(output, None, total, hidden, residual, weight, eps)
    return total, output


def quantized_rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> QuantizedTokens:
    """As `infer.kernels.quantized_outputs.quantized_rms_norm`."""
    output = empty_tokens(hidden, dtype)
    _launch(output.elements, output.scales, None, hidden, None, weight, eps)
    return output


def quantized_add_rms_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, QuantizedTokens]:
    """As `infer.kernels.quantized_outputs.quantized_add_rms_norm`."""
    total, output = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device), empty_tokens(hidden, dtype)
    _launch(output.elements, output.scales, total, hidden, residual, weight, eps)
    return total, output


def _launch(
    output: torch.Tensor,
    scales: torch.Tensor | None,
    total: torch.Tensor | None,
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
) -> None:
    size = hidden.shape[-1]
    rows = _as_rows(hidden)
    residual_rows = rows if residual is None else _as_rows(residual)
    if not len(rows):
        return
    tile = row_tile(size)
    rms_norm_kernel[(triton.cdiv(len(rows), tile.num_rows),)](
        output.view(torch.int8) if scales is not None else output,
        scales,
        total,
        rows,
        None if residual is None else residual_rows,
        weight.contiguous(),
        len(rows),
        rows.stride(0),
        residual_rows.stride(0),
        eps,
        is_fp8=output.dtype is torch.float8_e4m3fn,
        size=size,
        size_padded=tile.size_padded,
        rows_per_program=tile.num_rows,
        num_warps=tile.num_warps,
        enable_fp_fusion=False,  # elements are rounded as the reference does
    )


def _as_rows(hidden: torch.Tensor) -> torch.Tensor:
    """`[num_rows, size]`, a view where the rows lie at equal distances; elements of a row lie side by side."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    output_ptr: tl.tensor,
    scales_ptr: tl.tensor | None,
    total_ptr: tl.tensor | None,
    hidden_ptr: tl.tensor,
    residual_ptr: tl.tensor | None,
    weight_ptr: tl.tensor,
    num_rows: tl.tensor,
    hidden_row_stride: tl.tensor,
    residual_row_stride: tl.tensor,
    eps: tl.tensor,
    is_fp8: tl.constexpr,
    size: tl.constexpr,
    size_padded: tl.constexpr,
    rows_per_program: tl.constexpr,
) -> None:
    """Program `[row tile]`. Output and total are contiguous, the output quantised where there are scales."""
    rows = tl.program_id(0).to(tl.int64) * rows_per_program + tl.arange(0, rows_per_program)
    columns = tl.arange(0, size_padded)
    is_column = columns < size
    mask = (rows < num_rows)[:, None] & is_column[None, :]
    places = rows[:, None] * size + columns[None, :]
    elements = tl.load(hidden_ptr + rows[:, None] * hidden_row_stride + columns[None, :], mask=mask, other=0.0)
    if residual_ptr is not None:
        residual_places = rows[:, None] * residual_row_stride + columns[None, :]
        residual = tl.load(residual_ptr + residual_places, mask=mask, other=0.0)
        elements = (elements.to(tl.float32) + residual.to(tl.float32)).to(elements.dtype)
        tl.store(total_ptr + places, elements, mask=mask)
    weight = tl.load(weight_ptr + columns, mask=is_column, other=0.0)
    elements = scale_by(elements, weight[None, :], inverse_rms(elements, eps, size))
    if scales_ptr is not None:
        elements, scales = quantize_rows(elements, is_fp8)
        tl.store(scales_ptr + rows, scales, mask=rows < num_rows)
    tl.store(output_ptr + places, elements, mask=mask)


@triton.jit
def inverse_rms(elements: tl.tensor, eps: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """`[num_rows]` in float32, of rows of `size` elements and zeros behind them."""
    numbers = elements.to(tl.float32)
    return tl.rsqrt(tl.sum(numbers * numbers, 1) / size + eps)


@triton.jit
def scale_by(elements: tl.tensor, weight: tl.tensor, factors: tl.tensor) -> tl.tensor:
    """Rounded before the weight, as the definition has it."""
    normalised = (elements.to(tl.float32) * factors[:, None]).to(elements.dtype)
    return (normalised.to(tl.float32) * weight.to(tl.float32)).to(elements.dtype)
