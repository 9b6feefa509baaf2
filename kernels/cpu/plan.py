"""How the threads share the attention of a step: worked out once, for all layers of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from infer.kernels.cpu.call import CHUNKS, MERGE, WHOLE, Call
from infer.kernels.cpu.workspace import CHUNK, MAX_ROWS, partial_bytes, workspace_at

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata

_SHARES_PER_THREAD = 4
"""A thread's work should have at least so many parts, for all threads to end at about the same time."""

_NO_LAYER = (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
"""In the places of a layer's own fields, which come first."""


class Shape(NamedTuple):
    """What may differ among the layers of a model."""

    num_kv_heads: int
    group: int
    head_dim: int
    value_head_dim: int
    block_size: int
    sliding_window: int
    num_threads: int


class Plan(NamedTuple):
    """The calls to make, one after the other: of each the fields behind those that are the layer's own."""

    calls: tuple[tuple[float, ...], ...]
    memory: tuple[object, ...]
    """What the addresses in the calls point into."""


def plan_attention(shape: Shape, metadata: AttentionMetadata) -> Plan:
    """From the step's metadata where it was worked out before."""
    plan: Plan | None = metadata.plans.get(shape)
    if plan is None:
        plan = metadata.plans[shape] = _plan(shape, metadata)
    return plan


def _plan(shape: Shape, metadata: AttentionMetadata) -> Plan:
    tables = [table.contiguous() for table in (metadata.block_table, metadata.query_start_loc, metadata.seq_lens)]
    queries_at_once = min(max(1, MAX_ROWS // shape.group), metadata.max_query_len)
    call = Call(
        *_NO_LAYER,
        block_table=tables[0].data_ptr(),
        query_start_loc=tables[1].data_ptr(),
        seq_lens=tables[2].data_ptr(),
        num_seqs=len(metadata.seq_lens),
        max_blocks=metadata.block_table.shape[1],
        num_kv_heads=shape.num_kv_heads,
        group=shape.group,
        head_dim=shape.head_dim,
        value_head_dim=shape.value_head_dim,
        block_size=shape.block_size,
        sliding_window=shape.sliding_window,
        queries_at_once=queries_at_once,
    )
    seq_lens, query_lens = metadata.seq_lens.numpy(), np.diff(metadata.query_start_loc.numpy())
    num_spans = -(-query_lens // queries_at_once)
    # In keys to be read by a KV head; a thread's parts are spans, spans at one head, or chunks of these.
    share = int((num_spans * seq_lens).sum()) * shape.num_kv_heads / (shape.num_threads * _SHARES_PER_THREAD)
    is_split = shape.num_threads > 1 and metadata.max_seq_len > share
    num_partials = int((num_spans * -(-seq_lens // CHUNK)).sum()) * shape.num_kv_heads if is_split else 0
    partials = np.empty(num_partials * partial_bytes(call), np.uint8)
    workspace_bytes = workspace_at(call, 0).end
    workspaces = np.empty(shape.num_threads * workspace_bytes, np.uint8)
    call = call._replace(
        units_at_once=shape.num_kv_heads if metadata.max_seq_len * shape.num_kv_heads <= share else 1,
        workspaces=workspaces.ctypes.data,
        workspace_bytes=workspace_bytes,
        partials=partials.ctypes.data,
    )
    phases = (CHUNKS, MERGE) if is_split else (WHOLE,)
    return Plan(tuple(call._replace(phase=phase)[len(_NO_LAYER) :] for phase in phases), (tables, partials, workspaces))
