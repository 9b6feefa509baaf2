"""How products are computed: by the cache's dtype and by what the CPU can do. Each way is compiled on its own."""

from __future__ import annotations

import ctypes
import enum
import functools
import platform
import sys
from typing import Any

import torch
from numba import types
from numba.core.registry import cpu_target
from numba.extending import models, register_model, typeof_impl


class Arithmetic(enum.Enum):
    FLOAT32 = "float32"
    """Float32 pages, multiplied and accumulated in float32."""
    BFLOAT16_WIDENED = "bfloat16 widened"
    """Bfloat16 pages, widened to float32 in registers: for CPUs without bfloat16 arithmetic."""
    BFLOAT16_DOT = "bfloat16 dot"
    """Bfloat16 pages through AVX512-BF16's dot product of pairs."""
    BFLOAT16_TILES = "bfloat16 tiles"
    """Bfloat16 pages through AMX's tile registers, 16 rows at a time."""

    @property
    def has_float32_elements(self) -> bool:
        """Of query, cache and output; else they are bfloat16."""
        return self is Arithmetic.FLOAT32

    @property
    def has_bfloat16_operands(self) -> bool:
        """Whether queries and weights are multiplied as bfloat16."""
        return self in (Arithmetic.BFLOAT16_DOT, Arithmetic.BFLOAT16_TILES)


@functools.cache
def available_arithmetic(dtype: torch.dtype) -> tuple[Arithmetic, ...]:
    """What this CPU can do with pages of `dtype`, the fastest first; nothing for a dtype that is not served."""
    if dtype == torch.float32:
        return (Arithmetic.FLOAT32,)
    if dtype != torch.bfloat16:
        return ()
    found = [Arithmetic.BFLOAT16_WIDENED]
    if has_cpu_feature("avx512bf16"):
        found.insert(0, Arithmetic.BFLOAT16_DOT)
        if has_cpu_feature("amx-bf16") and _may_use_tiles():
            found.insert(0, Arithmetic.BFLOAT16_TILES)
    return tuple(found)


@functools.cache
def has_cpu_feature(name: str) -> bool:
    """Whether code is compiled for CPUs with this feature, as LLVM calls it."""
    features: str = cpu_target.target_context.codegen().magic_tuple()[2]
    return f"+{name}" in features.split(",")


def _may_use_tiles() -> bool:
    """Asks Linux for the tile registers, which a process gets only on request (arch_prctl ARCH_REQ_XCOMP_PERM)."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    refused: int = ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
    return refused == 0


class ArithmeticType(types.Opaque):  # type: ignore[misc]
    """To numba, each arithmetic is a type of its own: code that is handed one is compiled for it."""

    def __init__(self, arithmetic: enum.Enum) -> None:
        self.arithmetic = arithmetic
        super().__init__(name=f"arithmetic({arithmetic.value})")


register_model(ArithmeticType)(models.OpaqueModel)


@typeof_impl.register(Arithmetic)  # type: ignore[untyped-decorator]
def _typeof_arithmetic(value: Arithmetic, context: Any) -> ArithmeticType:
    return ArithmeticType(value)
