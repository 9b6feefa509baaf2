"""Random weights as ggml's quantised blocks. The library writes only some of the types, so they are drawn."""

from __future__ import annotations

import gguf
import numpy as np
import torch

_HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where in a block its float16 scales and minimums are."""


def random_blocks(type_name: str, num_rows: int, num_columns: int, *, seed: int = 0, scale: float = 0.01) -> np.ndarray:
    """uint8 `[num_rows, bytes of a row]`: all bits at random, and scales of about `scale`."""
    elements, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (num_rows, num_columns // elements, num_bytes), dtype=np.uint8)
    for offset in _HALVES[type_name]:
        values = (generator.standard_normal(blocks.shape[:2]) * scale).astype(np.float16)
        blocks[..., offset : offset + 2] = values[..., None].view(np.uint8)
    return blocks.reshape(num_rows, -1)


def numbers_of(type_name: str, blocks: np.ndarray) -> torch.Tensor:
    """What the gguf library makes of blocks: float32."""
    return torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[type_name]))
