"""What the operators that treat rows one by one share: threads take a few rows at a time until none is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from infer.kernels.cpu.arithmetic import Arithmetic, available_arithmetic
from infer.kernels.cpu.threads import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.kernels.cpu.compiler import Worker

ROWS_AT_ONCE = 16
"""What a thread takes. Less work than that is not worth waking another thread."""


def run_rows(
    worker: Callable[[Arithmetic], Worker], dtype: torch.dtype, num_rows: int, fields: tuple[float, ...]
) -> None:
    """Run `worker` over rows of `dtype`. `fields` are those of its call, less the two counters at the end: `num_rows`
    and `num_taken`, the address of an int64 that counts how often a thread took rows."""
    num_taken = np.zeros(1, np.int64)
    arithmetics = available_arithmetic(dtype)
    # The tile registers have no part in this, and what they are used with is BFLOAT16_DOT's.
    compiled = worker(Arithmetic.BFLOAT16_DOT if Arithmetic.BFLOAT16_DOT in arithmetics else arithmetics[-1])
    call = np.array((*fields, num_rows, num_taken.ctypes.data), compiled.record)
    run(compiled, call, min(torch.get_num_threads(), -(-num_rows // ROWS_AT_ONCE)))
