"""HostCache: the memory behind the host tier's blocks, and the copies between it and the device."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.engine.kv_cache import KVCache

_BLOCKS_AT_ONCE = 8
"""Bounds what a copy needs on the device, and on a CPU stays in its caches."""


class HostCache:
    """A row of bytes a block: all that the block consists of on the device, tensor after tensor.

    row   | layer 0 keys | layer 0 values | layer 1 keys | ...
    """

    def __init__(self, kv_cache: KVCache, num_blocks: int) -> None:
        """`num_blocks` usable blocks, the null block not counted. Memory is taken when it is first needed."""
        tensors = list(kv_cache.tensors())
        assert all(tensor.is_contiguous() for tensor in tensors), "a copy would be written to, not the cache"
        blocks = [tensor.view(tensor.shape[0], -1).view(torch.uint8) for tensor in tensors]
        # Rows are gathered and scattered by elements: of large ones there are fewer.
        word = torch.int64 if all(part.shape[1] % 8 == 0 for part in blocks) else torch.uint8
        self._parts = [part.view(word) for part in blocks]
        self._sizes = [part.shape[1] for part in self._parts]
        self._num_blocks = num_blocks
        self._device = tensors[0].device

    @property
    def num_bytes_per_block(self) -> int:
        return sum(self._sizes) * self._parts[0].itemsize

    def copy_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks of the device here, `(from, to)`."""
        for start in range(0, len(pairs), _BLOCKS_AT_ONCE):
            sources, targets = zip(*pairs[start : start + _BLOCKS_AT_ONCE], strict=True)
            ids = torch.tensor(sources, device=self._device)
            blocks = torch.cat([part.index_select(0, ids) for part in self._parts], 1).view(torch.uint8)
            for target, block in zip(targets, blocks, strict=True):
                self._rows[target - 1].copy_(block, non_blocking=True)

    def copy_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks from here to the device, `(from, to)`."""
        for start in range(0, len(pairs), _BLOCKS_AT_ONCE):
            sources, targets = zip(*pairs[start : start + _BLOCKS_AT_ONCE], strict=True)
            ids = torch.tensor(targets, device=self._device)
            blocks = torch.empty(len(sources), self.num_bytes_per_block, dtype=torch.uint8, device=self._device)
            for source, block in zip(sources, blocks, strict=True):
                block.copy_(self._rows[source - 1], non_blocking=True)
            for part, piece in zip(
                self._parts, torch.split(blocks.view(self._parts[0].dtype), self._sizes, 1), strict=True
            ):
                part.index_copy_(0, ids, piece)

    def row(self, block_id: int) -> torch.Tensor:
        """The bytes of a block, uint8 `[num_bytes_per_block]`, to be read and written at once."""
        if self._device.type == "cuda":
            # Copies to and from it may still be under way.
            torch.cuda.synchronize(self._device)
        return self._rows[block_id - 1]

    def release(self) -> None:
        """Give the memory back, with what it holds. It is taken again when it is needed again."""
        self.__dict__.pop("_rows", None)

    @cached_property
    def _rows(self) -> torch.Tensor:
        """Pinned where a GPU copies to and from it; elsewhere the system gives pages as they are written. Block 0
        has no row."""
        is_pinned = self._device.type == "cuda"
        return torch.empty(self._num_blocks, self.num_bytes_per_block, dtype=torch.uint8, pin_memory=is_pinned)
