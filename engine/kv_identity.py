"""What a block of the cache depends on besides its tokens, as one name: blocks of another name are of no use."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from infer.engine.config import EngineConfig
    from infer.engine.kv_cache import KVCache

_FORMAT = 1
"""Of the files of `disk_cache.py`; counted up with every change that older files do not survive."""


def weights_digest(model: torch.nn.Module) -> str:
    """sha256 over the names and bytes of all weights; about a second for 2 GB and core. Before they are changed."""
    named = sorted(model.named_parameters())
    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(_digest, (parameter for _, parameter in named)))
    parts = [[name, digest] for (name, _), digest in zip(named, digests, strict=True)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def kv_identity(config: EngineConfig, model_config: Any, weights: str, kv_cache: KVCache) -> str:
    """Of the blocks of `kv_cache`: model, types, layout, and what changes rounding."""
    tensors = list(kv_cache.tensors())
    parts = {
        "format": _FORMAT,
        "weights": weights,
        # Not where it lies.
        "model_config": {name: value for name, value in model_config.to_dict().items() if name != "_name_or_path"},
        "block_size": config.block_size,
        "backend": kv_cache.backend.name,
        "device": tensors[0].device.type,
        "layout": [[str(tensor.dtype), *tensor.shape[1:]] for tensor in tensors],
        "fuse_kernels": config.fuse_kernels,
        "prepack_linears": config.prepack_linears,
        "quantization": config.quantization,
        "shared_prefix_attention": config.shared_prefix_attention,
        "linear_backend": config.linear_backend,
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _digest(parameter: torch.nn.Parameter) -> str:
    data = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(data.numpy().data).hexdigest()
