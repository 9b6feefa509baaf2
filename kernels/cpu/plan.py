"""How the threads share the attention of a step: worked out once, for all layers of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from infer.kernels.cpu.call import CHUNKS, MERGE, WHOLE, Call
from infer.kernels.cpu.work_list import Entries, costs_of, largest_num_queries, make_turns, split_chunks
from infer.kernels.cpu.workspace import partial_bytes, workspace_at

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
    block_table, seq_lens = metadata.block_table.contiguous(), metadata.seq_lens.contiguous()
    # A window that nobody looks beyond is none.
    sliding_window = shape.sliding_window if shape.sliding_window < metadata.max_seq_len else 0
    turns = make_turns(shape.group, shape.block_size, sliding_window, metadata)
    num_states = len(metadata.slot_mapping) * shape.num_kv_heads * shape.group if len(turns) > 1 else 0
    states = np.empty(num_states * (shape.value_head_dim + 2), np.float32)
    call = Call(
        *_NO_LAYER,
        block_table=block_table.data_ptr(),
        seq_lens=seq_lens.data_ptr(),
        max_blocks=metadata.block_table.shape[1],
        num_kv_heads=shape.num_kv_heads,
        group=shape.group,
        head_dim=shape.head_dim,
        value_head_dim=shape.value_head_dim,
        block_size=shape.block_size,
        sliding_window=sliding_window,
        queries_at_once=max(map(largest_num_queries, turns)),
        states=states.ctypes.data,
        num_states=num_states,
    )
    workspace_bytes = workspace_at(call, 0).end
    workspaces = np.empty(shape.num_threads * workspace_bytes, np.uint8)
    call = call._replace(workspaces=workspaces.ctypes.data, workspace_bytes=workspace_bytes)
    calls: list[Call] = []
    memory: list[object] = [block_table, seq_lens, states, workspaces]
    for entries in turns:
        calls += _calls_of_turn(entries, shape, call, memory)
    return Plan(tuple(call[len(_NO_LAYER) :] for call in calls), tuple(memory))


def _calls_of_turn(entries: Entries, shape: Shape, call: Call, memory: list[object]) -> list[Call]:
    """Appends to `memory` what the calls point into."""
    costs = costs_of(entries, shape.group)
    share = costs.sum() * shape.num_kv_heads / (shape.num_threads * _SHARES_PER_THREAD)
    if shape.num_threads > 1 and costs.max() > share:
        entries, chunks, num_partials = split_chunks(entries, shape.num_kv_heads)
        partials = np.empty(num_partials * partial_bytes(call), np.uint8)
        memory += [entries, chunks, partials]
        call = call._replace(partials=partials.ctypes.data)
        return [_call_of(phase, each, call) for phase, each in ((CHUNKS, chunks), (MERGE, entries))]
    memory.append(entries)
    units_at_once = shape.num_kv_heads if costs.max() * shape.num_kv_heads <= share else 1
    return [_call_of(WHOLE, entries, call)._replace(units_at_once=units_at_once)]


def _call_of(phase: int, entries: Entries, call: Call) -> Call:
    return call._replace(phase=phase, entries=entries.ctypes.data, num_entries=len(entries))
