"""In which floating-point type a model runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from infer.engine.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infer.engine.config import DType
    from infer.engine.safetensors_header import StoredTensor

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Capabilities as torch names them: of x86, and of ARM."""
_SAFETENSORS_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def select_dtype(requested: DType, stored: torch.dtype, device: torch.device) -> torch.dtype:
    """`auto` is the stored type where the device is fast in it, else float32, which holds every value of the others.

    For a float16 checkpoint on a CPU bfloat16 would be faster, but rounds its weights: it has to be asked for.
    """
    if requested != "auto":
        return _DTYPES[requested]
    return stored if _is_fast(stored, device) else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_fast(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the device multiplies in this type, instead of converting to float32 first."""
    if dtype is torch.float32:
        return True
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return dtype is torch.bfloat16 and any(capabilities.get(name, False) for name in _CPU_BFLOAT16)
    return dtype is torch.float16 or torch.cuda.is_bf16_supported(including_emulation=False)


def stored_dtype(config: dict[str, Any], tensors: Iterable[StoredTensor]) -> torch.dtype:
    """The type `config.json` names, else the one most of the weights have.

    Raises:
        ModelError: it is none of those a model can run in.
    """
    named = config.get("dtype") or config.get("torch_dtype")
    if named is None:
        num_elements: Counter[str] = Counter()
        for tensor in tensors:
            num_elements[tensor.dtype] += tensor.num_elements
        [(most_common, _)] = num_elements.most_common(1) or [("none", 0)]
        named = _SAFETENSORS_NAMES.get(most_common, most_common)
    if not isinstance(named, str) or named not in _DTYPES:
        raise ModelError(f"the checkpoint is in a type that is not run: {named}", hint=f"run: {', '.join(_DTYPES)}")
    return _DTYPES[named]
