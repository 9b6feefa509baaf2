"""The quantised layers of a network swapped for modules that can take what their checkpoint holds.

Which layers they are is read from the tensors that are there, not from the patterns of a config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from infer.engine.checkpoint_quantization import block_sizes
from infer.engine.errors import ModelError
from infer.engine.stored_weights import GgufWeight, Int8Weight, StoredWeight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infer.engine.checkpoint_quantization import CheckpointQuantization
    from infer.engine.compressed_tensors import Int8Scheme
    from infer.engine.safetensors_header import StoredTensor

_SCALES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_ZEROS = {"I8": torch.int8, "I32": torch.int32, **_SCALES}
_INT8_NAMES = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")


def replace_layers(model: Any, quantization: CheckpointQuantization, tensors: Sequence[StoredTensor]) -> None:
    """Put a StoredWeight in the place of every quantised layer of a transformers model without memory.

    Raises:
        ModelError: a tensor is not of the shape that its layer asks for, or its layer cannot be quantised.
    """
    stored = {tensor.name: tensor for tensor in tensors}
    tied = _tied_layers(model)
    for layer in _layers(quantization, stored):
        # A layer that shares the weight of another has it under the other's name.
        for name in (layer, *tied.get(layer, ())):
            _set(model, name, _replacement(layer, _layer(model, name), quantization, stored))


def _layers(quantization: CheckpointQuantization, stored: Mapping[str, StoredTensor]) -> list[str]:
    if quantization.int8 is None:
        return list(quantization.block_types)
    marks = {name for name, tensor in stored.items() if tensor.dtype == "I8" or name.rpartition(".")[2] in _INT8_NAMES}
    return sorted({name.rpartition(".")[0] for name in marks})


def _replacement(
    layer: str, original: nn.Module, quantization: CheckpointQuantization, stored: Mapping[str, StoredTensor]
) -> StoredWeight:
    if quantization.int8 is None and isinstance(original, nn.Linear | nn.Embedding):
        return _gguf_weight(layer, original, quantization.block_types[layer], stored)
    if quantization.int8 is not None and isinstance(original, nn.Linear):
        return _int8_weight(layer, original, quantization.int8, stored)
    raise ModelError(f"{layer} is quantised, and is no linear layer but a {type(original).__name__}")


def _gguf_weight(
    layer: str, original: nn.Linear | nn.Embedding, type_name: str, stored: Mapping[str, StoredTensor]
) -> GgufWeight:
    elements, num_bytes = block_sizes(type_name)
    num_rows, num_columns = original.weight.shape
    row_bytes = num_columns // elements * num_bytes
    _expect(stored, f"{layer}.weight", ("U8",), [(num_rows, row_bytes)], num_columns % elements == 0)
    return GgufWeight(original, type_name, row_bytes)


def _int8_weight(layer: str, original: nn.Linear, scheme: Int8Scheme, stored: Mapping[str, StoredTensor]) -> Int8Weight:
    num_rows, num_columns = original.weight.shape
    if scheme.is_packed:
        _expect(stored, f"{layer}.weight_packed", ("I32",), [(num_rows, -(-num_columns // 4))])
        _expect(stored, f"{layer}.weight_shape", ("I64",), [(2,)])
    else:
        _expect(stored, f"{layer}.weight", ("I8",), [(num_rows, num_columns)])
    group = scheme.group_size
    shapes_of: dict[str, list[tuple[int, ...]]] = {
        "tensor": [(), (1,), (1, 1)],
        "channel": [(num_rows,), (num_rows, 1)],
        "group": [(num_rows, num_columns // group)],
    }
    shapes = shapes_of[scheme.strategy]
    scale = _expect(stored, f"{layer}.weight_scale", tuple(_SCALES), shapes, num_columns % group == 0)
    zero_point = stored.get(f"{layer}.weight_zero_point")
    zeros = None
    if zero_point is not None:
        _expect(stored, zero_point.name, tuple(_ZEROS), [scale.shape])
        zeros = (_ZEROS[zero_point.dtype], zero_point.shape)
    if f"{layer}.weight_g_idx" in stored:
        raise ModelError(f"{layer} has its columns in another order, which is not run: weight_g_idx")
    return Int8Weight(original, scale.shape, zeros, is_packed=scheme.is_packed, has_int8_tokens=scheme.has_int8_tokens)


def _expect(
    stored: Mapping[str, StoredTensor],
    name: str,
    dtypes: tuple[str, ...],
    shapes: list[tuple[int, ...]],
    is_possible: bool = True,
) -> StoredTensor:
    tensor = stored.get(name)
    if tensor is None:
        raise ModelError(f"the checkpoint lacks a tensor of a quantised layer: {name}")
    if tensor.dtype not in dtypes or tensor.shape not in shapes or not is_possible:
        raise ModelError(
            f"{name} is {tensor.dtype} {list(tensor.shape)}, where its layer asks for {' or '.join(dtypes)} "
            f"{' or '.join(str(list(shape)) for shape in shapes)}"
        )
    return tensor


def _tied_layers(model: Any) -> dict[str, list[str]]:
    """By the name of an embedding that is tied to the last layer, the name of that."""
    if not getattr(model.config, "tie_word_embeddings", False) or model.get_output_embeddings() is None:
        return {}
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(model.get_input_embeddings())]: [names[id(model.get_output_embeddings())]]}


def _layer(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise ModelError(f"a layer is quantised that its architecture does not have: {name!r:.80}") from error


def _set(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
