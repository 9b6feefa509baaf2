"""argmax in torch's operators, by blocks: the maximum of a block needs no index, and looking for it is what is slow."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

_BLOCK_SIZE = 512
"""Elements that are reduced together before anything looks at single ones."""


def argmax(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `infer.kernels.argmax.argmax`."""
    blocked = in_blocks(rows, -math.inf)
    maxima, index = blocked.amax(-1).max(-1)
    return maxima.float(), index * blocked.shape[-1] + at(blocked, index).max(-1).indices


def in_blocks(rows: torch.Tensor, fill: float) -> torch.Tensor:
    """A view of `rows` as [num_rows, num_blocks, block_size]; a copy with `fill` at the end for an odd number."""
    block_size = math.gcd(rows.shape[-1], _BLOCK_SIZE)
    if block_size < _BLOCK_SIZE // 8:
        block_size = _BLOCK_SIZE
        rows = F.pad(rows, (0, -rows.shape[-1] % block_size), value=fill)
    return rows.view(len(rows), rows.shape[-1] // block_size, block_size)


def at(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`rows[i, index[i]]` for every i."""
    return rows[torch.arange(len(rows), device=rows.device), index]
