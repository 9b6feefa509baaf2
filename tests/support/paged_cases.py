"""Steps of paged attention as the kernel tests need them: few tokens, in scattered blocks of caches full of NaN."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch

from infer.kernels import reference
from infer.kernels.attention_metadata import AttentionMetadata
from infer.kernels.kv_pages import KVPages

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class PagedCase:
    """The tensors of one step, and in `keys[i]` and `values[i]` those of sequence `i` by position."""

    query: torch.Tensor
    pages: KVPages
    metadata: AttentionMetadata
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    stored: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    """Keys and values in the pages, and their slots."""

    def to(self, device: str) -> PagedCase:
        pages = KVPages(*(tensor.to(device) for tensor in self.pages.tensors()))
        return replace(self, query=self.query.to(device), pages=pages, metadata=metadata_to(self.metadata, device))


def fill_with_nan(pages: KVPages) -> None:
    """All bits set is a NaN in every floating-point type; an int8 is then as good as any other."""
    for tensor in pages.tensors():
        tensor.view(torch.uint8).fill_(0xFF)


def metadata_to(metadata: AttentionMetadata, device: str) -> AttentionMetadata:
    values = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
    return replace(metadata, **{name: x.to(device) for name, x in values.items() if isinstance(x, torch.Tensor)})


def make_paged_case(
    query_lens: list[int],
    seq_lens: list[int],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    value_head_dim: int | None = None,
    block_size: int = 4,
    sliding_window: int = 0,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    shared_prefixes: tuple[tuple[int, int, int, int], ...] = (),
    seed: int = 0,
) -> PagedCase:
    """Pages as the reference has them, of `dtype` unless another is given; NaN in every slot that holds no token.

    Blocks that lie before the window of all a sequence's queries are given back, as the engine may do: their entries
    in the block table are 0. Block 0 holds nothing.

    shared_prefixes: rows of `AttentionMetadata.shared_prefixes`
    """
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    value_head_dim = value_head_dim or head_dim
    block_counts = [-(-seq_len // block_size) for seq_len in seq_lens]
    num_blocks = sum(block_counts) + 3
    pages = reference.allocate_kv_cache(
        num_blocks, block_size, num_kv_heads, head_dim, value_head_dim, dtype, cache_dtype or dtype, torch.device("cpu")
    )
    fill_with_nan(pages)
    block_table = torch.zeros(len(seq_lens), max(block_counts) + 1, dtype=torch.int32)
    free_blocks = torch.randperm(num_blocks - 1, generator=generator).int() + 1
    keys, values, slots, stored = [], [], [], []
    for sequence, (row, query_len, seq_len, blocks) in enumerate(
        zip(block_table, query_lens, seq_lens, free_blocks[: sum(block_counts)].split(block_counts), strict=True)
    ):
        row[: len(blocks)] = blocks
        positions = torch.arange(seq_len)
        keys.append(randn(seq_len, num_kv_heads, head_dim))
        values.append(randn(seq_len, num_kv_heads, value_head_dim))
        for first, end, first_block, end_block in shared_prefixes:
            if first < sequence < end:
                shared = slice(first_block * block_size, end_block * block_size)
                row[first_block:end_block] = block_table[first, first_block:end_block]
                keys[-1][shared], values[-1][shared] = keys[first][shared], values[first][shared]
        slot_mapping = row[positions // block_size].long() * block_size + positions % block_size
        first_held = 0
        if sliding_window:
            first_visible = max(0, seq_len - query_len - sliding_window + 1)
            row[: first_visible // block_size] = 0
            first_held = first_visible // block_size * block_size
        stored.append((keys[-1][first_held:], values[-1][first_held:], slot_mapping[first_held:]))
        slots.append(slot_mapping[seq_len - query_len :])
    num_decodes = next((index for index, query_len in enumerate(query_lens) if query_len != 1), len(query_lens))
    metadata = AttentionMetadata(
        slot_mapping=torch.cat(slots),
        block_table=block_table,
        query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        num_decodes=num_decodes,
        shared_prefixes=torch.tensor(shared_prefixes, dtype=torch.int32) if shared_prefixes else None,
    )
    query = randn(sum(query_lens), num_heads, head_dim)
    key, value, held_slots = (torch.cat(parts) for parts in zip(*stored, strict=True))
    reference.store_kv(key, value, pages, held_slots)
    return PagedCase(query, pages, metadata, tuple(keys), tuple(values), (key, value, held_slots))


@contextmanager
def nan_filled_outputs() -> Iterator[None]:
    """Makes `torch.empty` give NaN, so that an element nobody writes shows."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
