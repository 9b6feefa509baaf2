"""GGUF's quantised blocks as `Codes`. The formats are ggml's, `ggml-common.h` and `ggml-quants.c`.

Q4_0   32 elements:  d f16 | 16 bytes: element i in the lower, 16 + i in the upper half
Q4_1   32 elements:  d f16 | m f16 | 16 bytes, as Q4_0
Q8_0   32 elements:  d f16 | 32 int8
Q4_K  256 elements:  d f16 | dmin f16 | 8 scales and 8 minimums of 6 bits | 128 bytes, each 32 of them as Q4_0's 16
Q6_K  256 elements:  128 bytes of lower bits | 64 of upper ones | 16 int8 scales | d f16
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infer.kernels.grouped_weight import Codes

if TYPE_CHECKING:
    from collections.abc import Callable


def blocks_to_codes(type_name: str, rows: torch.Tensor) -> Codes:
    """`rows`: uint8 `[out_features, bytes of a row]`.

    Raises:
        ValueError: a scale or a minimum is no number.
    """
    block_bytes, parse = _FORMATS[type_name]
    weight = parse(rows.view(len(rows), -1, block_bytes))
    for values in (weight.scales, weight.minimums):
        if values is not None and not bool(values.isfinite().all()):
            raise ValueError("a scale is infinite or no number")
    return weight


def _q4_0(blocks: torch.Tensor) -> Codes:
    return Codes(_halves(blocks[..., 2:], 16), 4, zero=8, group=32, scales=_float16(blocks[..., :2]))


def _q4_1(blocks: torch.Tensor) -> Codes:
    scales, minimums = _float16(blocks[..., :2]), _float16(blocks[..., 2:4])
    return Codes(_halves(blocks[..., 4:], 16), 4, zero=0, group=32, scales=scales, minimums=minimums)


def _q8_0(blocks: torch.Tensor) -> Codes:
    codes = blocks[..., 2:].flatten(1).view(torch.int8)
    return Codes(codes, 8, zero=0, group=32, scales=_float16(blocks[..., :2]))


def _q4_k(blocks: torch.Tensor) -> Codes:
    # The lower six bits of bytes 0 to 3 are scales 0 to 3, of bytes 4 to 7 minimums 0 to 3. The others have their lower
    # four bits in bytes 8 to 11, scales in the lower halves, and their upper two in the upper two of bytes 0 to 7.
    packed = blocks[..., 4:16]
    first, last = packed[..., :8], packed[..., 8:]
    scales = torch.cat([first[..., :4] & 63, last & 15 | first[..., :4] >> 6 << 4], -1)
    minimums = torch.cat([first[..., 4:] & 63, last >> 4 | first[..., 4:] >> 6 << 4], -1)
    return Codes(
        _halves(blocks[..., 16:], 32),
        4,
        zero=0,
        group=32,
        scales=_float16(blocks[..., :2]),
        scale_factors=scales.flatten(1).view(torch.int8),
        # They are subtracted.
        minimums=-_float16(blocks[..., 2:4]),
        minimum_factors=minimums.flatten(1).view(torch.int8),
    )


def _q6_k(blocks: torch.Tensor) -> Codes:
    lower = _halves(blocks[..., :128], 64)
    packed = blocks[..., 128:192].reshape(len(blocks), -1, 2, 1, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device).view(4, 1)
    upper = (packed >> shifts & 3).flatten(1)
    factors = blocks[..., 192:208].flatten(1).view(torch.int8)
    scales = _float16(blocks[..., 208:])
    return Codes(lower | upper << 4, 6, zero=32, group=16, scales=scales, scale_factors=factors)


_FORMATS: dict[str, tuple[int, Callable[[torch.Tensor], Codes]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q6_K": (210, _q6_k),
}

PACKED_TYPES = frozenset(_FORMATS)
"""ggml's names of the types that stay packed."""


def _halves(packed: torch.Tensor, size: int) -> torch.Tensor:
    """Of every `size` bytes the lower halves, then the upper ones: uint8 `[rows, elements]`."""
    bytes_ = packed.reshape(len(packed), -1, 1, size)
    return torch.cat([bytes_ & 15, bytes_ >> 4], 2).flatten(1)


def _float16(pairs: torch.Tensor) -> torch.Tensor:
    """Two bytes of each block: float16 `[rows, blocks]`."""
    return pairs.contiguous().view(torch.float16).squeeze(-1)
