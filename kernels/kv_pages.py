"""KVPages: the keys and values of one layer in the cache, stored as they are or quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The dtypes that keys and values are quantised to, and the largest number that each is scaled to."""

SMALLEST_PEAK = 2.0**-100
"""Stands for the peak of heads that have none as large, such as zeros, so that no scale is 0."""


@dataclass(frozen=True, slots=True)
class KVPages:
    """Dimension 0 of every tensor is the block; the rest is the layout of the backend that allocated them.

    Quantised, a head of a token is its elements times one scale: the head's largest magnitude, but at least
    `SMALLEST_PEAK`, by the largest number of the dtype. So what is stored of a token depends on nothing but the token:
    not on those that came before it, as with scales for whole heads.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_scales: torch.Tensor | None = None
    """float32, one a token and KV head; None where elements are stored as they are."""
    value_scales: torch.Tensor | None = None

    def tensors(self) -> Iterator[torch.Tensor]:
        for tensor in (self.key, self.value, self.key_scales, self.value_scales):
            if tensor is not None:
                yield tensor
