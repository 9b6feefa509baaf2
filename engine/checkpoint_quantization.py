"""How the weights of a checkpoint are quantised, told by its config.json, and the tensors by which it is done.

gguf                what a GGUF file becomes here: linear layers and embeddings in rows of ggml's blocks
compressed-tensors  `int-quantized`    weight int8, weight_scale
                    `pack-quantized`   weight_packed int32, four numbers of 8 bits each, weight_scale, weight_shape
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from infer.engine.compressed_tensors import read_compressed_tensors
from infer.engine.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infer.engine.compressed_tensors import Int8Scheme
    from infer.engine.safetensors_header import StoredTensor

GGUF_METHOD = "gguf"
PACKED_TYPES = frozenset({"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"})
"""ggml's names of the types of blocks that stay as they are."""


@dataclass(frozen=True, slots=True)
class CheckpointQuantization:
    """Of one checkpoint."""

    method: str
    block_types: Mapping[str, str] = field(default_factory=dict)
    """Of a GGUF file: ggml's type of each quantised layer, by the layer's name."""
    int8: Int8Scheme | None = None
    """Of compressed-tensors."""

    @property
    def has_int8_tokens(self) -> bool:
        """Whether activations are to be rounded, too."""
        return self.int8 is not None and self.int8.has_int8_tokens

    def describe(self) -> str:
        if self.int8 is not None:
            return self.int8.describe()
        return ", ".join(sorted(set(self.block_types.values())))

    def num_weights(self, tensor: StoredTensor) -> int:
        """How many weights a tensor holds."""
        layer, _, name = tensor.name.rpartition(".")
        if name == "weight" and layer in self.block_types:
            elements, num_bytes = block_sizes(self.block_types[layer])
            return tensor.num_elements // num_bytes * elements
        return tensor.num_elements * (4 if name == "weight_packed" else 1)


def read_quantization(config: dict[str, Any], source: str) -> CheckpointQuantization | None:
    """What `config`, a config.json, says; None where nothing is quantised.

    Raises:
        ModelError: the method, or what it did, is not run.
    """
    found: Any = _quantization(config)
    if not found:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else found
    is_whole = isinstance(found, dict) and found is config.get("quantization_config")
    if not is_whole or method not in (GGUF_METHOD, "compressed-tensors"):
        raise ModelError(
            f"{source} is quantised in a way that is not run: {method!s:.80}",
            hint="run are compressed-tensors of 8 bits and .gguf files; or pass the unquantised checkpoint",
        )
    if method == GGUF_METHOD:
        return CheckpointQuantization(GGUF_METHOD, block_types=_block_types(found, source))
    return CheckpointQuantization(method, int8=read_compressed_tensors(found, source))


def gguf_config(block_types: Mapping[str, str]) -> dict[str, Any]:
    """What `read_quantization` reads as these types."""
    return {"quant_method": GGUF_METHOD, "types": dict(block_types)}


def _block_types(found: Mapping[str, Any], source: str) -> Mapping[str, str]:
    given = found.get("types")
    types: dict[str, Any] = given if isinstance(given, dict) else {}
    names = types.values()
    if not names or not all(isinstance(name, str) and name in PACKED_TYPES for name in names):
        raise ModelError(f"{source} has no types of blocks for its layers, or some that are not known: {given!r:.200}")
    return types


def _quantization(config: Mapping[str, Any]) -> Any:
    """What says how the weights are quantised, for the whole or for a part."""
    parts = [config, *(value for value in config.values() if isinstance(value, dict))]
    names = ("quantization_config", "compression_config")
    return next((part[name] for part in parts for name in names if part.get(name)), None)


def block_sizes(type_name: str) -> tuple[int, int]:
    """Elements and bytes of a block of this type of ggml's."""
    # Imported here: it brings numpy, and most checkpoints have no blocks.
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    elements, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    return int(elements), int(num_bytes)
