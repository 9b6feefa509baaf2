"""A call of compiled code as a record in memory: counters that its threads share, and what the call is told.

    | threads begun | units taken |  empty  | field | field | ... |
    0               8             16        128

The counters change while every thread reads the fields: apart, they never lie in the same line of a cache.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import numpy as np
from numba import types
from numba.extending import intrinsic

from infer.kernels.cpu.llvm import INT64

if TYPE_CHECKING:
    from collections.abc import Callable

    from llvmlite import ir

_THREADS, _UNITS = 0, 8
_HEADER_BYTES = 128


class Layout(NamedTuple):
    """How a record lies in memory, to compiled code and to Python."""

    dtype: np.dtype[np.void]
    pack: Callable[..., bytes]
    """The bytes of a record from its fields, the counters at 0."""


def layout_of(fields: type[tuple[Any, ...]]) -> Layout:
    """Of a named tuple of int and float, as compiled code sees it: int64 and float32."""
    kinds = get_type_hints(fields)
    columns = [(name, np.float32 if kind is float else np.int64) for name, kind in kinds.items()]
    codes = "".join("f" if kind is float else "q" for kind in kinds.values())
    dtype = np.dtype([("header", np.uint8, _HEADER_BYTES), *columns], align=True)
    return Layout(dtype, struct.Struct(f"@{_HEADER_BYTES}x{codes}").pack)


def _counter(offset: int) -> Callable[[Any], int]:
    """Compiled code that reads the counter at `offset` of a record and makes it one larger: every thread gets another
    number."""

    def number_of(typing_context: Any, call: types.Record) -> tuple[Any, Any]:
        def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            address = builder.add(builder.ptrtoint(values[0], INT64), INT64(offset))
            pointer = builder.inttoptr(address, INT64.as_pointer())
            return builder.atomic_rmw("add", pointer, INT64(1), "monotonic")

        return types.int64(call), code

    made: Callable[[Any], int] = intrinsic(number_of)
    return made


take_thread = _counter(_THREADS)
"""The number of the calling thread among those of the call."""

take_unit = _counter(_UNITS)
"""The number of the next unit of work that no thread has taken."""
