"""How the CPU kernels lay the weight of a linear layer out: panels of columns, ready for vector registers.

    float32    [num_panels][in_features][64 columns]
    bfloat16   [num_panels][in_features / 2][64 columns][2]

A panel is read from its first line to its last. Columns that the last one has too many are 0. In a gated layer the
first half of a panel are columns of the gate, the second half the same columns of what it lets through.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from infer.kernels.cpu.arithmetic import Arithmetic, available_arithmetic, has_cpu_feature
from infer.kernels.cpu.huge_pages import Arena
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.register_block import MAX_COLUMNS

PANEL = MAX_COLUMNS * LANES
"""Columns of a panel."""

_arena = Arena()
"""All of a model's weights, which each step reads."""


@dataclass(frozen=True, slots=True)
class Panels:
    """The weight and the bias of one layer."""

    weight: torch.Tensor
    bias: torch.Tensor
    """float32 `[num_panels * PANEL]`, 0 where the layer has none."""
    in_features: int
    out_features: int
    num_panels: int
    num_steps: int
    """The depth, in bfloat16 in pairs."""
    addresses: tuple[int, int]
    """Of weight and bias: asked for at every call, and always the same."""


def why_not(dtype: torch.dtype, in_features: int) -> str | None:
    """What keeps our products from being the fastest way to compute such a layer; None if nothing does."""
    if not has_cpu_feature("avx512f"):
        return "they need the 32 registers of AVX-512"
    best = available_arithmetic(dtype)[:1]
    if best not in ((Arithmetic.FLOAT32,), (Arithmetic.BFLOAT16_DOT,)):
        # AMX multiplies faster than vectors do; without bfloat16 arithmetic nothing is fast.
        return f"they multiply float32, and bfloat16 in vectors of pairs: {dtype}"
    if in_features % 2:
        return f"the number of inputs must be even: {in_features}"
    return None


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> Panels:
    """weight: `[out_features, in_features]`, bfloat16 or float32"""
    return _laid_out(_blocks(weight, PANEL), None if bias is None else _blocks(bias, PANEL), len(weight))


def pack_gated(
    gate: torch.Tensor, up: torch.Tensor, gate_bias: torch.Tensor | None, up_bias: torch.Tensor | None
) -> Panels:
    """Two weights as of `pack`, of the same shape; both have a bias, or neither."""
    assert gate.shape == up.shape, (gate.shape, up.shape)
    half = PANEL // 2
    weight = torch.cat([_blocks(gate, half), _blocks(up, half)], 1)
    bias = None
    if gate_bias is not None and up_bias is not None:
        bias = torch.cat([_blocks(gate_bias, half), _blocks(up_bias, half)], 1)
    return _laid_out(weight, bias, len(gate))


def _blocks(rows: torch.Tensor, size: int) -> torch.Tensor:
    """`[num_rows, ...]` as `[num_blocks, size, ...]`, zeros behind the last row."""
    missing = -len(rows) % size
    padded = F.pad(rows.detach(), (0, 0, 0, missing) if rows.dim() == 2 else (0, missing))
    return padded.view(-1, size, *rows.shape[1:])


def _laid_out(weight: torch.Tensor, bias: torch.Tensor | None, out_features: int) -> Panels:
    """weight: `[num_panels, PANEL, in_features]`; bias: `[num_panels, PANEL]`"""
    num_panels, _, in_features = weight.shape
    if bias is None:
        bias = torch.zeros(num_panels, PANEL)
    if weight.dtype is torch.bfloat16:
        weight = weight.view(num_panels, PANEL, in_features // 2, 2)
    packed, bias = _arena.copy(weight.transpose(1, 2)), bias.float().flatten()
    addresses = packed.data_ptr(), bias.data_ptr()
    return Panels(packed, bias, in_features, out_features, num_panels, packed.shape[1], addresses)
