"""GroupedWeight: a matrix in a few bits an element and a scale for each group of a row, laid out for vector registers.

    weight[n, k] = scale[n, k // group] * (code[n, k] - zero) + minimum[n, k // group]

Codes have 4, 6 or 8 bits; those of 8 have a sign. Scales and minimums are stored as they are, or as those of a larger
group, times a small whole number for each group in it (ggml's K-quants).

Sixteen rows are a tile. Of two neighbouring columns it has 32 codes: first those of rows 0 to 7, then of rows 8 to 15,
of each row its two side by side. So what becomes of them is in the order in which pairs are multiplied.

    codes   4 bits  uint8 [tiles][in_features / 2][16]   the first 16 codes in the lower halves, the others in the upper
            6 bits  the lower four bits like that, and
    high            uint8 [tiles][in_features / 4][16]   the upper two: of a pair of columns, of the next, likewise
            8 bits  int8  [tiles][in_features / 2][32]
    scales, minimums                [tiles][in_features / (group * groups_per_scale)][16]
    scale_factors, minimum_factors  int8 [tiles][in_features / group][16]

The rows behind the last one of the matrix, up to a whole tile, are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

LANES = 16
"""Rows in a tile."""

SMALLEST_GROUP = 16
"""Groups are multiples of it."""


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """See above. Scales and minimums are float16 or float32."""

    out_features: int
    in_features: int
    code_bits: int
    zero: int
    group: int
    groups_per_scale: int
    codes: torch.Tensor
    scales: torch.Tensor
    high: torch.Tensor | None = None
    scale_factors: torch.Tensor | None = None
    minimums: torch.Tensor | None = None
    minimum_factors: torch.Tensor | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    @property
    def _form(self) -> tuple[object, ...]:
        """What weights have in common that are one but for their rows."""
        sizes = (self.in_features, self.code_bits, self.zero, self.group, self.groups_per_scale)
        return (*sizes, *((name, tensor.dtype) for name, tensor in self.tensors.items()))

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True)
class Codes:
    """A weight matrix before it is laid out. All tensors are `[out_features, ...]`."""

    codes: torch.Tensor
    """`[out_features, in_features]`, uint8, or int8 where they have 8 bits."""
    code_bits: int
    zero: int
    group: int
    scales: torch.Tensor
    """float16 or float32 `[out_features, number of scales]`."""
    scale_factors: torch.Tensor | None = None
    """int8 `[out_features, number of groups]`, where groups share a scale; so for minimums."""
    minimums: torch.Tensor | None = None
    minimum_factors: torch.Tensor | None = None

    def numbers(self) -> torch.Tensor:
        """float32 `[out_features, in_features]`. Each is rounded at most once: the product of a scale, its factor and a
        code has no more than float32's 24 bits."""
        out_features, in_features = self.codes.shape
        num_groups = in_features // self.group
        codes = (self.codes.float() - self.zero).view(out_features, num_groups, self.group)
        numbers = codes * _spread(self.scales, self.scale_factors, num_groups).unsqueeze(-1)
        if self.minimums is not None:
            numbers += _spread(self.minimums, self.minimum_factors, num_groups).unsqueeze(-1)
        return numbers.view(out_features, in_features)


def pack_codes(weight: Codes) -> GroupedWeight:
    """Lay a weight matrix out."""
    out_features, in_features = weight.codes.shape
    assert in_features % weight.group == weight.group % SMALLEST_GROUP == 0, (in_features, weight.group)
    num_groups, num_scales = in_features // weight.group, weight.scales.shape[1]
    assert num_groups % num_scales == 0, (num_groups, num_scales)
    # [tiles, in_features / 2, 2, 16] to [tiles, in_features / 2, 16, 2]: the codes of two columns, row by row.
    codes = _in_tiles(weight.codes).view(-1, in_features // 2, 2, LANES).transpose(2, 3).flatten(2)
    high = None
    first, last = codes[..., :LANES], codes[..., LANES:]
    if weight.code_bits == 6:
        upper = first >> 4 | last >> 4 << 2
        high = upper[:, 0::2] | upper[:, 1::2] << 4
    if weight.code_bits < 8:
        codes = first & 15 | last << 4
    rest = (weight.scale_factors, weight.minimums, weight.minimum_factors)
    return GroupedWeight(
        out_features,
        in_features,
        weight.code_bits,
        weight.zero,
        weight.group,
        num_groups // num_scales,
        codes,
        _in_tiles(weight.scales),
        high,
        *(None if tensor is None else _in_tiles(tensor) for tensor in rest),
    )


def join_weights(weights: Sequence[GroupedWeight]) -> list[GroupedWeight]:
    """The same rows in fewer weights: neighbours of one form become one, unless the rows of the first are no whole
    number of tiles."""
    joined = [weights[0]]
    for weight in weights[1:]:
        last = joined[-1]
        if last.out_features % LANES or last._form != weight._form:
            joined.append(weight)
            continue
        tensors: dict[str, Any] = {
            name: torch.cat([tensor, weight.tensors[name]]) for name, tensor in last.tensors.items()
        }
        joined[-1] = replace(last, out_features=last.out_features + weight.out_features, **tensors)
    return joined


def unpack_weight(weight: GroupedWeight) -> torch.Tensor:
    """The float32 numbers of a weight, `[out_features, in_features]`."""
    return unpack_rows(weight, torch.arange(weight.out_features, device=weight.codes.device))


def unpack_rows(weight: GroupedWeight, rows: torch.Tensor) -> torch.Tensor:
    """Some rows of it: float32 `[len(rows), in_features]`."""
    tiles, lanes = rows // LANES, rows % LANES
    rest = (weight.scale_factors, weight.minimums, weight.minimum_factors)
    return Codes(
        _codes(weight, tiles, lanes),
        weight.code_bits,
        weight.zero,
        weight.group,
        weight.scales[tiles, :, lanes],
        *(None if tensor is None else tensor[tiles, :, lanes] for tensor in rest),
    ).numbers()


def _in_tiles(rows: torch.Tensor) -> torch.Tensor:
    """`[rows, size]` to `[tiles, size, 16]`."""
    missing = -len(rows) % LANES
    if missing:
        rows = torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])
    return rows.view(-1, LANES, rows.shape[1]).transpose(1, 2).contiguous()


def _codes(weight: GroupedWeight, tiles: torch.Tensor, lanes: torch.Tensor) -> torch.Tensor:
    """`[len(tiles), in_features]`"""
    if weight.code_bits == 8:
        return _pairs_of(weight.codes, tiles, lanes)
    # Rows 8 to 15 of a tile lie behind the others, in the upper bits.
    row, upper = lanes % (LANES // 2), (lanes >= LANES // 2).to(torch.uint8).unsqueeze(1)
    codes = _pairs_of(weight.codes, tiles, row) >> 4 * upper & 15
    if weight.high is None:
        return codes
    high = _pairs_of(weight.high, tiles, row) >> 2 * upper
    bits = torch.stack([high.view(len(tiles), weight.in_features // 4, 2) >> shift & 3 for shift in (0, 4)], 2)
    return codes | bits.flatten(1) << 4


def _pairs_of(values: torch.Tensor, tiles: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Of `[tiles, size, 2 * rows]` the two of each row: `[len(tiles), 2 * size]`."""
    pairs = values.view(*values.shape[:2], -1, 2)
    return pairs[tiles, :, row].flatten(1)


def _spread(values: torch.Tensor, factors: torch.Tensor | None, num_groups: int) -> torch.Tensor:
    """float32 `[rows, num_groups]`"""
    shared = values.float().repeat_interleave(num_groups // values.shape[1], 1)
    return shared if factors is None else shared * factors
