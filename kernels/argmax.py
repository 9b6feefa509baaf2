"""argmax: of each row the largest element and where it stands first."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from infer.kernels.reference import argmax as reference

if TYPE_CHECKING:
    import torch


def argmax(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima, float32, and indices, int64: `[num_rows]` each. A NaN in a row is its maximum; the index is then any.

    rows: `[num_rows, size]`, size at least 1
    """
    if rows.is_cpu and importlib.util.find_spec("numba") is not None:
        from infer.kernels.cpu import argmax as cpu

        if cpu.why_not(rows.dtype, rows.shape[-1]) is None:
            return cpu.argmax(rows)
    return reference.argmax(rows)
