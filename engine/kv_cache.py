"""The tensors behind the blocks, and how many of them fit the memory and the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from infer.engine.errors import ConfigError
from infer.engine.model_dtype import dtype_name
from infer.kernels.kv_pages import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from infer.engine.attention import LayerSpec
    from infer.engine.config import KVCacheDType
    from infer.kernels.backend import Backend
    from infer.kernels.kv_pages import KVPages

_QUANTIZED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
_SCALE_BYTES = torch.float32.itemsize


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Size and type of a block over all layers."""

    layers: tuple[LayerSpec, ...]
    block_size: int
    dtype: torch.dtype
    """Of the model, which keys and values are computed in."""
    kv_cache_dtype: KVCacheDType = "auto"
    """What they are stored as; `auto` is as they are."""

    @property
    def cache_dtype(self) -> torch.dtype:
        return _QUANTIZED.get(self.kv_cache_dtype, self.dtype)

    @property
    def cache_dtype_name(self) -> str:
        """For people."""
        return dtype_name(self.dtype) if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    @property
    def window(self) -> int:
        """How many tokens back any layer looks; 0 where some layer looks at all."""
        windows = [layer.sliding_window for layer in self.layers]
        return max(windows) if all(windows) else 0

    @property
    def num_bytes_per_block(self) -> int:
        return self.block_size * sum(
            layer.num_kv_heads
            * (self._num_bytes_per_head(layer.head_dim) + self._num_bytes_per_head(layer.value_head_dim))
            for layer in self.layers
        )

    def describe(self, num_blocks: int) -> str:
        """For people: what so many blocks are."""
        blocks = f"{num_blocks:,} block{'' if num_blocks == 1 else 's'} of {self.block_size} tokens"
        size = f"{num_blocks * self.num_bytes_per_block / 2**20:,.1f} MiB"
        return f"{blocks}, {num_blocks * self.block_size:,} tokens in {size} of {self.cache_dtype_name}"

    def _num_bytes_per_head(self, size: int) -> int:
        return size * self.cache_dtype.itemsize + (_SCALE_BYTES if self.cache_dtype in LARGEST else 0)


@dataclass(frozen=True, slots=True)
class KVCache:
    """The pages of every layer; dimension 0 of each tensor is the block, the rest is the backend's layout."""

    layers: tuple[KVPages, ...]
    backend: Backend

    def tensors(self) -> Iterator[torch.Tensor]:
        """All that a block consists of: row `block_id` of each."""
        for layer in self.layers:
            yield from layer.tensors()

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
                spec.dtype, spec.cache_dtype, device,
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
