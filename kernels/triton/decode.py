"""Attention of the sequences with one query each: a work list, two launches at most that go through it, and a merge.

The result of a sequence has the same bits in every batch in which it shares the same keys with others: its splits lie
at fixed positions, and each is computed alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton

from infer.kernels.triton.attend_entries import attend_entries_kernel, merge_slots_kernel
from infer.kernels.triton.support import num_multiprocessors
from infer.kernels.triton.tile_shape import TileShape, decode_tile, padded, shared_tile
from infer.kernels.triton.work_list import WorkList, list_work

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.triton.quantized import Layout

_PROGRAMS_PER_MULTIPROCESSOR = 8
"""More than fit at a time, so that those that finish early make room for others."""

_MERGED_ELEMENTS = 1024
"""Of a program that merges."""


class _Plan(NamedTuple):
    """What all layers of a step have in common."""

    work: WorkList
    own_tile: TileShape
    shared_tile: TileShape
    max_programs: int


def decode_attention(
    output: torch.Tensor,
    query: torch.Tensor,
    pages: Layout,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> None:
    """Writes the first `num_decodes` rows of `output`."""
    num_decodes = metadata.num_decodes
    _, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, value_head_dim = pages.value.shape
    group_size = num_heads // num_kv_heads
    plan = _plan(query, metadata, num_kv_heads, block_size, sliding_window)
    work = plan.work
    if work.max_slots == 1:
        # Nothing is partial: these stand for what is not written.
        partial = log_sum_exp = work.num_slots
    else:
        sizes = (num_decodes, work.max_slots, num_heads)
        log_sum_exp = torch.empty(sizes, dtype=torch.float32, device=query.device)
        partial = log_sum_exp.new_empty(*sizes, value_head_dim)

    def attend(entries: torch.Tensor, num_entries: torch.Tensor, tile: TileShape) -> None:
        attend_entries_kernel[(min(plan.max_programs, entries.shape[0] * num_kv_heads),)](
            output,
            partial,
            log_sum_exp,
            query,
            pages.key,
            pages.value,
            pages.key_scales,
            pages.value_scales,
            metadata.block_table,
            entries,
            num_entries,
            sinks,
            scale,
            work.max_slots,
            query.stride(0),
            query.stride(1),
            metadata.block_table.stride(0),
            is_fp8=pages.is_fp8,
            softcap=softcap,
            group_size=group_size,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            head_dim_padded=padded(head_dim),
            value_head_dim=value_head_dim,
            value_head_dim_padded=padded(value_head_dim),
            num_rows=tile.num_rows,
            num_keys=tile.num_keys,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            enable_fp_fusion=True,  # named, because Triton 3.10 changes its default
        )

    if work.shared.shape[0] > 0:
        attend(work.shared, work.num_entries[1], plan.shared_tile)
    attend(work.own, work.num_entries[0], plan.own_tile)
    if work.max_slots > 1:
        heads_per_program = max(1, min(triton.next_power_of_2(num_heads), _MERGED_ELEMENTS // padded(value_head_dim)))
        merge_slots_kernel[(num_decodes, triton.cdiv(num_heads, heads_per_program))](
            output,
            partial,
            log_sum_exp,
            work.num_slots,
            work.max_slots,
            num_heads=num_heads,
            heads_per_program=heads_per_program,
            value_head_dim=value_head_dim,
            value_head_dim_padded=padded(value_head_dim),
            num_warps=2,
            enable_fp_fusion=True,
        )


def _plan(
    query: torch.Tensor, metadata: AttentionMetadata, num_kv_heads: int, block_size: int, sliding_window: int
) -> _Plan:
    """The same object for all layers of a step that have these sizes.

    A graph that is being captured makes its own: it is to plan again whenever it runs. A metadata belongs to one graph.
    """
    _, num_heads, head_dim = query.shape
    is_captured = query.is_cuda and torch.cuda.is_current_stream_capturing()
    key = ("triton decode", num_heads, num_kv_heads, head_dim, block_size, sliding_window, is_captured)
    plans: dict[Any, _Plan] = metadata.plans
    if key not in plans:
        group_size = num_heads // num_kv_heads
        sizes = (group_size, head_dim, query.element_size())
        of_shared = shared_tile(metadata.num_decodes, *sizes)
        plans[key] = _Plan(
            list_work(metadata, block_size, sliding_window, of_shared.num_rows // group_size),
            decode_tile(*sizes),
            of_shared,
            num_multiprocessors(query.device) * _PROGRAMS_PER_MULTIPROCESSOR,
        )
    return plans[key]
