"""What the CPU kernels can serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.cpu.arithmetic import available_arithmetic
from infer.kernels.cpu.layout import TILE
from infer.kernels.cpu.llvm import LANES
from infer.kernels.kv_pages import LARGEST

if TYPE_CHECKING:
    import torch


def why_not(
    dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int, value_head_dim: int, block_size: int
) -> str | None:
    """What keeps them from serving such tensors; None if nothing does."""
    if not available_arithmetic(dtype):
        return f"it computes in float32 and bfloat16 only: {dtype}"
    if cache_dtype not in (dtype, *LARGEST):
        return f"its caches are of {dtype}, torch.int8 and torch.float8_e4m3fn: {cache_dtype}"
    if head_dim % LANES != 0:
        return f"the head dimension must be a multiple of {LANES}: {head_dim}"
    if value_head_dim % LANES != 0:
        return f"the head dimension of values must be a multiple of {LANES}: {value_head_dim}"
    if block_size % TILE != 0:
        return f"the block size must be a multiple of {TILE}: {block_size}"
    return None
