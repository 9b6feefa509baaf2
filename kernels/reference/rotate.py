"""rotate: blocks of channels times a Hadamard matrix, so that no channel stands out any more."""

from __future__ import annotations

import torch


def rotate(hidden: torch.Tensor, size: int) -> torch.Tensor:
    """`hidden`, `[..., n * size]`, each block of `size` channels times the Hadamard matrix of that size, a power of 2
    (Sylvester 1867): in float32, as sums and differences of neighbours 1 apart, then 2, 4, and so on. Done twice, it
    multiplies by `size`."""
    hidden = hidden.to(torch.float32)
    distance = 1
    while distance < size:
        pairs = hidden.reshape(*hidden.shape[:-1], hidden.shape[-1] // (2 * distance), 2, distance)
        left, right = pairs.unbind(-2)
        hidden = torch.stack([left + right, left - right], -2).flatten(-3)
        distance *= 2
    return hidden
