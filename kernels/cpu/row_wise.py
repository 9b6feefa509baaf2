"""What the operators that treat rows one by one share: threads take a few rows at a time until none is left."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numba
import torch

from infer.kernels.cpu.arithmetic import Arithmetic, available_arithmetic
from infer.kernels.cpu.compiler import compile_worker
from infer.kernels.cpu.record import take_unit
from infer.kernels.cpu.threads import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.kernels.cpu.compiler import Worker

ROWS_AT_ONCE = 16
"""What a thread takes. Less work than that is not worth waking another thread."""


def row_worker(
    fields: type[tuple[Any, ...]], work_on_row: Callable[[Any, Any, int], None]
) -> Callable[[Arithmetic], Worker]:
    """Compiles `work_on_row(arithmetic, call, row)` for every row of a call, whose last field is `num_rows`."""

    @functools.cache
    def worker(arithmetic: Arithmetic) -> Worker:
        def work(pointer: Any) -> None:
            call = numba.carray(pointer, 1)[0]
            while True:
                first = take_unit(call) * ROWS_AT_ONCE
                if first >= call.num_rows:
                    return
                for row in range(first, min(first + ROWS_AT_ONCE, call.num_rows)):
                    work_on_row(arithmetic, call, row)

        return compile_worker(work, fields)

    return worker


def run_rows(
    worker: Callable[[Arithmetic], Worker], dtype: torch.dtype, num_rows: int, fields: tuple[float, ...]
) -> None:
    """Run `worker` over rows of `dtype`. `fields` are those of its call, less the last, `num_rows`."""
    num_threads = min(torch.get_num_threads(), -(-num_rows // ROWS_AT_ONCE))
    if num_threads:
        run(worker(element_arithmetic(dtype)), (*fields, num_rows), num_threads)


@functools.cache
def element_arithmetic(dtype: torch.dtype) -> Arithmetic:
    """For code that multiplies elements, not matrices."""
    arithmetics = available_arithmetic(dtype)
    # The tile registers have no part in this, and what they are used with is BFLOAT16_DOT's.
    return Arithmetic.BFLOAT16_DOT if Arithmetic.BFLOAT16_DOT in arithmetics else arithmetics[-1]
