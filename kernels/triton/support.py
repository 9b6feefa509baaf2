"""What the Triton kernels can serve, and what they run on."""

from __future__ import annotations

from functools import cache

import torch

from infer.kernels.kv_pages import LARGEST

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def why_not(dtype: torch.dtype, cache_dtype: torch.dtype, device: torch.device) -> str | None:
    """What keeps the kernels from serving a CUDA `device`; None if nothing does. Sizes of heads and blocks never do."""
    if dtype not in _DTYPES:
        return f"its dtypes are float16, bfloat16 and float32: {dtype}"
    if cache_dtype not in (dtype, *LARGEST):
        return f"its caches are of {dtype}, torch.int8 and torch.float8_e4m3fn: {cache_dtype}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"it needs compute capability 8.0 or newer: {capability[0]}.{capability[1]}"
    return None


@cache
def num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
