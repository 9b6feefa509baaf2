"""The tensors behind the blocks, and how many of them fit the memory and the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from infer.engine.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from infer.engine.attention import LayerSpec
    from infer.kernels.backend import Backend


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Size and type of a block over all layers."""

    layers: tuple[LayerSpec, ...]
    block_size: int
    dtype: torch.dtype

    @property
    def num_bytes_per_block(self) -> int:
        num_elements = sum(layer.num_kv_heads * (layer.head_dim + layer.value_head_dim) for layer in self.layers)
        return num_elements * self.block_size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class KVCache:
    """Key and value cache of every layer; dimension 0 of each tensor is the block, the rest is the backend's layout."""

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    backend: Backend

    def tensors(self) -> Iterator[torch.Tensor]:
        """All that a block consists of: row `block_id` of each."""
        for layer in self.layers:
            yield from layer

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """Make the second block of every pair hold what the first does. All are read before any is written."""
        pairs = list(copies)
        if not pairs:
            return
        for tensor in self.tensors():
            sources, targets = torch.tensor(pairs, device=tensor.device).unbind(1)
            tensor[targets] = tensor[sources]


def allocate_kv_cache(spec: KVCacheSpec, num_blocks: int, backend: Backend, device: torch.device) -> KVCache:
    """Zero-filled cache of `num_blocks` usable blocks and the null block."""
    return KVCache(
        tuple(
            backend.allocate_kv_cache(
                num_blocks + 1, spec.block_size, layer.num_kv_heads, layer.head_dim, layer.value_head_dim,
                spec.dtype, device,
            )
            for layer in spec.layers
        ),
        backend,
    )  # fmt: skip


def fit_num_blocks(
    spec: KVCacheSpec,
    num_bytes: int,
    *,
    num_blocks: int | None,
    max_num_seqs: int,
    max_model_len: int,
    num_requests: int | None,
    max_request_tokens: int | None,
    keep_prefixes: bool,
) -> int:
    """Blocks for a run: `num_blocks` where that is given, else what its requests need, in the memory there is.

    Needed are `max_num_seqs` requests of the longest kind side by side, as much again for prefixes that are kept, no
    more than all requests together take, and in any case one request of `max_model_len`.

    Raises:
        ConfigError: not one block fits, or not `num_blocks`.
    """

    def num_blocks_for(num_tokens: int) -> int:
        return -(-num_tokens // spec.block_size)

    affordable = num_bytes // spec.num_bytes_per_block
    if affordable < (num_blocks or 1):
        raise ConfigError(
            f"no memory for the kv cache: {num_blocks or 1:,} blocks are the least, "
            f"a block takes {spec.num_bytes_per_block:,} bytes, {max(0, num_bytes):,} are left",
            hint="lower --num-blocks, free memory, raise --gpu-memory-utilization, or lower --max-num-batched-tokens",
        )
    if num_blocks is not None:
        return num_blocks
    per_request = num_blocks_for(min(max_request_tokens or max_model_len, max_model_len))
    needed = max_num_seqs * per_request * (2 if keep_prefixes else 1)
    if num_requests is not None:
        needed = min(needed, num_requests * per_request)
    return min(affordable, max(needed, num_blocks_for(max_model_len)))
