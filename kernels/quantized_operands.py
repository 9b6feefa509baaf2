"""QuantizedTokens and QuantizedWeight: the two sides of a linear layer as int8 or fp8, a scale for each vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The dtypes that linear layers are quantised to, and the largest number that each is scaled to."""

SMALLEST_PEAK = 2.0**-100
"""Stands for the peak of vectors that have none as large, such as zeros, so that no scale is 0."""


@dataclass(frozen=True, slots=True)
class QuantizedTokens:
    """Hidden states `[..., size]`, each token its elements times one scale: its largest magnitude, but at least
    `SMALLEST_PEAK`, by the largest number of the dtype. So it depends on nothing but the token.

    How the elements lie in memory, and whether something was added to them, is the business of the backend that made
    them; only their shape is the same everywhere, and the last dimension may be longer than `size`.
    """

    elements: torch.Tensor
    scales: torch.Tensor
    """float32 `[...]`"""
    size: int

    @property
    def shape(self) -> torch.Size:
        """Of the hidden states."""
        return torch.Size((*self.scales.shape, self.size))


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """The weight of a linear layer, each output channel its elements times one scale."""

    elements: torch.Tensor
    """`[out_features, in_features]`; or packed, as `pack_weight` of a backend lays it out, for that backend alone."""
    scales: torch.Tensor
    """float32 `[out_features]`"""
    out_features: int
    in_features: int
    rotation: int = 1
    """Size of the blocks of input channels that are rotated; so must be those of the tokens."""
    offsets: torch.Tensor | None = None
    """What a backend's packing keeps beside the elements."""

    def tensors(self) -> Iterator[torch.Tensor]:
        for tensor in (self.elements, self.scales, self.offsets):
            if tensor is not None:
                yield tensor
