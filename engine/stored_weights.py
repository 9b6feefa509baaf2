"""Weights in the form their checkpoint has them: modules that transformers fills, and that are then made ready to run.

Each stands in the place of a linear layer or an embedding from before the weights are read, holds tensors under the
checkpoint's own names, and gives way to a layer that multiplies with them as they are, or to one of numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import nn

from infer.engine.dequant_modules import DequantEmbedding, DequantLinear, as_parameters
from infer.engine.errors import ModelError
from infer.engine.int8_linear import Int8Linear
from infer.kernels.gguf_blocks import blocks_to_codes
from infer.kernels.grouped_weight import SMALLEST_GROUP, Codes, pack_codes
from infer.kernels.quantized_operands import QuantizedWeight

if TYPE_CHECKING:
    from infer.kernels.backend import Backend
    from infer.kernels.grouped_weight import GroupedWeight


class StoredWeight(nn.Module, ABC):
    """In the place of `original`, which is a linear layer or an embedding without memory."""

    def __init__(self, original: nn.Linear | nn.Embedding) -> None:
        super().__init__()
        self.num_rows, self.num_columns = original.weight.shape
        self.dtype = original.weight.dtype
        self.is_embedding = isinstance(original, nn.Embedding)
        bias = getattr(original, "bias", None)
        self.bias = None if bias is None else nn.Parameter(torch.empty_like(bias), requires_grad=False)

    def hold(self, name: str, dtype: torch.dtype, *shape: int) -> None:
        """Make room for a tensor of the checkpoint, in memory once it is read."""
        parameter = nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"), requires_grad=False)
        self.register_parameter(name, parameter)

    @abstractmethod
    def codes(self) -> Codes:
        """What was read.

        Raises:
            ValueError: it is not what the format allows.
        """

    @property
    @abstractmethod
    def key(self) -> object:
        """The same for layers that share their weight."""


class GgufWeight(StoredWeight):
    """Rows of ggml's blocks."""

    weight: torch.Tensor

    def __init__(self, original: nn.Linear | nn.Embedding, type_name: str, row_bytes: int) -> None:
        super().__init__(original)
        self._type_name = type_name
        self.hold("weight", torch.uint8, self.num_rows, row_bytes)

    def codes(self) -> Codes:
        return blocks_to_codes(self._type_name, self.weight.data)

    @property
    def key(self) -> object:
        return id(self.weight)


class Int8Weight(StoredWeight):
    """compressed-tensors' `int-quantized` and `pack-quantized` of 8 bits: whole numbers of -128 to 127, and a scale for
    each row, or each group of one, or all."""

    weight: torch.Tensor
    weight_packed: torch.Tensor
    weight_shape: torch.Tensor
    weight_scale: torch.Tensor
    weight_zero_point: torch.Tensor | None

    def __init__(
        self,
        original: nn.Linear,
        scale_shape: tuple[int, ...],
        zero_point: tuple[torch.dtype, tuple[int, ...]] | None,
        *,
        is_packed: bool,
        has_int8_tokens: bool,
    ) -> None:
        super().__init__(original)
        self.is_packed = is_packed
        self.has_int8_tokens = has_int8_tokens
        """Whether activations are to be rounded to int8, too."""
        if is_packed:
            self.hold("weight_packed", torch.int32, self.num_rows, -(-self.num_columns // 4))
            self.hold("weight_shape", torch.int64, 2)
        else:
            self.hold("weight", torch.int8, self.num_rows, self.num_columns)
        self.hold("weight_scale", torch.float32, *scale_shape)
        if zero_point is not None:
            self.hold("weight_zero_point", zero_point[0], *zero_point[1])

    def elements(self) -> torch.Tensor:
        """int8 `[num_rows, num_columns]`"""
        zero_point = getattr(self, "weight_zero_point", None)
        if zero_point is not None and bool(zero_point.any()):
            raise ValueError("a symmetric weight has a zero point")
        if not self.is_packed:
            return self.weight.data
        shape, packed = self.weight_shape.tolist(), self.weight_packed.data
        if shape != [self.num_rows, self.num_columns]:
            raise ValueError(f"weight_shape is {shape}, not {[self.num_rows, self.num_columns]}")
        # Offset by 128, the first number in the lowest byte.
        return (packed.view(torch.uint8)[:, : self.num_columns] ^ 128).view(torch.int8)

    def scales(self) -> torch.Tensor:
        """float32 `[num_rows, number of groups]`"""
        if not bool(self.weight_scale.isfinite().all()):
            raise ValueError("a scale is infinite or no number")
        scale = self.weight_scale.data.reshape(-1, self.weight_scale.shape[-1] if self.weight_scale.dim() == 2 else 1)
        return scale.expand(self.num_rows, scale.shape[1])

    def codes(self) -> Codes:
        scales = self.scales()
        return Codes(self.elements(), 8, zero=0, group=self.num_columns // scales.shape[1], scales=scales.contiguous())

    @property
    def key(self) -> object:
        return id(self)


def make_ready(model: nn.Module, backend: Backend | None) -> int:
    """Replace every StoredWeight of a model by a layer that can be run: of weights as they are where `backend` is given
    and can serve them, of numbers else. Returns how many stay as they are.

    Raises:
        ModelError: what was read is not what its format allows.
    """
    shared: dict[object, GroupedWeight | nn.Parameter] = {}
    num_kept = 0
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, StoredWeight):
                try:
                    ready = _ready(child, backend, shared)
                except ValueError as error:
                    raise ModelError(f"{path}.{name} is damaged: {error}", hint="download the model again") from error
                num_kept += isinstance(ready, DequantLinear | DequantEmbedding | Int8Linear)
                setattr(module, name, ready)
    return num_kept


def _ready(
    stored: StoredWeight, backend: Backend | None, shared: dict[object, GroupedWeight | nn.Parameter]
) -> nn.Module:
    if backend is not None and isinstance(stored, Int8Weight) and stored.has_int8_tokens:
        scales = stored.scales().flatten().contiguous()
        weight = QuantizedWeight(stored.elements(), scales, stored.num_rows, stored.num_columns)
        return Int8Linear(weight, stored.bias, stored.dtype, backend)
    if stored.key not in shared:
        shared[stored.key] = _weight(stored, backend)
    ready = shared[stored.key]
    if isinstance(ready, nn.Parameter):
        return _dense(stored, ready)
    assert backend is not None
    if stored.is_embedding:
        return DequantEmbedding(ready, stored.dtype)
    return DequantLinear([ready], stored.bias, stored.dtype, backend)


def _weight(stored: StoredWeight, backend: Backend | None) -> GroupedWeight | nn.Parameter:
    codes = stored.codes()
    # What is no whole number of vectors is multiplied as numbers.
    fits = codes.group % SMALLEST_GROUP == 0
    if backend is not None and fits:
        return as_parameters(pack_codes(codes))
    return nn.Parameter(codes.numbers().to(stored.dtype), requires_grad=False)


def _dense(stored: StoredWeight, weight: nn.Parameter) -> nn.Module:
    dense: nn.Linear | nn.Embedding
    if stored.is_embedding:
        dense = nn.Embedding(stored.num_rows, stored.num_columns, device="meta")
    else:
        dense = nn.Linear(stored.num_columns, stored.num_rows, stored.bias is not None, device="meta")
        if stored.bias is not None:
            dense.bias = stored.bias
    dense.weight = weight
    return dense
