"""The queries of a step in tiles, as a list on the device: made by a kernel, once for all layers and heads."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata

ENTRY_SIZE = 4
"""int32 of a tile: first token, number of queries, sequence, position of the first query."""

_ENTRY_SIZE = tl.constexpr(ENTRY_SIZE)
_CHUNK = tl.constexpr(128)


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """Of the sequences behind the first `num_decodes`, in their order."""

    entries: torch.Tensor
    """int32 `[capacity, ENTRY_SIZE]`"""
    num_entries: torch.Tensor
    """int32 `[1]`"""


def list_query_tiles(metadata: AttentionMetadata, queries_per_tile: int) -> QueryTiles:
    num_decodes, device = metadata.num_decodes, metadata.seq_lens.device
    num_seqs = metadata.seq_lens.shape[0] - num_decodes
    num_queries = metadata.slot_mapping.shape[0] - num_decodes
    # As many as there can be, whatever the lengths.
    capacity = num_queries // queries_per_tile + num_seqs
    entries = torch.empty(capacity, ENTRY_SIZE, dtype=torch.int32, device=device)
    num_entries = torch.empty(1, dtype=torch.int32, device=device)
    write_tiles_kernel[(num_seqs,)](
        entries,
        num_entries,
        metadata.query_start_loc,
        metadata.seq_lens,
        num_decodes,
        num_seqs,
        queries_per_tile=queries_per_tile,
        num_warps=1,
        enable_fp_fusion=True,
    )
    return QueryTiles(entries, num_entries)


@triton.jit(do_not_specialize=["first_seq", "num_seqs"])
def write_tiles_kernel(
    entries_ptr: tl.tensor,
    num_entries_ptr: tl.tensor,
    query_start_loc_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    first_seq: tl.tensor,
    num_seqs: tl.tensor,
    queries_per_tile: tl.constexpr,
) -> None:
    """Program `[sequence]`."""
    index = tl.program_id(0)
    before = index * 0
    total = before
    for start in range(0, num_seqs, _CHUNK):
        ids = start + tl.arange(0, _CHUNK)
        starts = tl.load(query_start_loc_ptr + first_seq + ids, mask=ids < num_seqs, other=0)
        ends = tl.load(query_start_loc_ptr + first_seq + ids + 1, mask=ids < num_seqs, other=0)
        counts = tl.cdiv(ends - starts, queries_per_tile)
        before += tl.sum(tl.where(ids < index, counts, 0), 0)
        total += tl.sum(counts, 0)
    tl.store(num_entries_ptr, total, mask=index == 0)
    seq = first_seq + index
    query_start = tl.load(query_start_loc_ptr + seq)
    query_len = tl.load(query_start_loc_ptr + seq + 1) - query_start
    context_len = tl.load(seq_lens_ptr + seq) - query_len
    for tile in range(tl.cdiv(query_len, queries_per_tile)):
        first_query = tile * queries_per_tile
        entry_ptr = entries_ptr + (before + tile) * _ENTRY_SIZE
        tl.store(entry_ptr, query_start + first_query)
        tl.store(entry_ptr + 1, tl.minimum(query_len - first_query, queries_per_tile))
        tl.store(entry_ptr + 2, seq)
        tl.store(entry_ptr + 3, context_len + first_query)
