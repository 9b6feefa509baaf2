"""silu_and_mul on a GPU, some columns of one row a program."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

import torch
import triton
import triton.language as tl

_COLUMNS_PER_PROGRAM = 1024


def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """As `infer.kernels.activation.silu_and_mul`."""
    size = gate.shape[-1]
    output = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    gate, up = gate.reshape(-1, size), up.reshape(-1, size)
    if len(gate):
        silu_and_mul_kernel[(len(gate), triton.cdiv(size, _COLUMNS_PER_PROGRAM))](
            output,
            gate,
            up,
            gate.stride(0),
            up.stride(0),
            size,
            columns_per_program=_COLUMNS_PER_PROGRAM,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return output


@triton.jit
def silu_and_mul_kernel(
    output_ptr: tl.tensor,
    gate_ptr: tl.tensor,
    up_ptr: tl.tensor,
    gate_row_stride: tl.tensor,
    up_row_stride: tl.tensor,
    size: tl.tensor,
    columns_per_program: tl.constexpr,
) -> None:
    """Program `[row, column tile]`."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * columns_per_program + tl.arange(0, columns_per_program)
    mask = columns < size
    gate = tl.load(gate_ptr + row * gate_row_stride + columns, mask=mask, other=0.0)
    up = tl.load(up_ptr + row * up_row_stride + columns, mask=mask, other=0.0)
    product = silu(gate).to(tl.float32) * up.to(tl.float32)
    tl.store(output_ptr + row * size + columns, product.to(gate.dtype), mask=mask)


@triton.jit
def silu(gate: tl.tensor) -> tl.tensor:
    """In float32, rounded to the dtype of `gate`. No exponential that can overflow: `exp(-|gate|)` is at most 1."""
    numbers = gate.to(tl.float32)
    exponential = tl.exp(-tl.abs(numbers))
    sigmoid = tl.where(numbers < 0.0, exponential, 1.0) / (1.0 + exponential)
    return (numbers * sigmoid).to(gate.dtype)
