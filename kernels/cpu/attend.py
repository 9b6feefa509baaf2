"""The compiled attention: threads take entries of the work list until none are left."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numba

from infer.kernels.cpu.call import CHUNKS, MERGE, Call, Entry, Partial, Rows
from infer.kernels.cpu.chunk import attend_chunk, number_tiles
from infer.kernels.cpu.compiler import Worker, compile_worker, compiled
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements, operand_bytes, store_operands
from infer.kernels.cpu.partial import clear, merge, write_output
from infer.kernels.cpu.products import begin_products, end_products
from infer.kernels.cpu.record import take_thread, take_unit
from infer.kernels.cpu.simd import load_int64
from infer.kernels.cpu.workspace import WORD_BYTES, Workspace, partial_at, partial_bytes, workspace_at

if TYPE_CHECKING:
    from infer.kernels.cpu.arithmetic import Arithmetic

_ENTRY_BYTES = len(Entry._fields) * 8


@functools.cache
def attention_worker(arithmetic: Arithmetic) -> Worker:
    def attend(call: Any) -> None:
        _attend(arithmetic, numba.carray(call, 1)[0])

    return compile_worker(attend, Call)


@compiled
def _attend(arithmetic: Any, call: Call) -> None:
    space = workspace_at(call, call.workspaces + take_thread(call) * call.workspace_bytes)
    begin_products(arithmetic)
    num_units = call.num_entries * call.num_kv_heads
    unit = take_unit(call) * call.units_at_once
    while unit < num_units:
        for each in range(unit, min(unit + call.units_at_once, num_units)):
            entry = _load_entry(call.entries + each // call.num_kv_heads * _ENTRY_BYTES)
            _attend_rows(arithmetic, call, Rows(entry, each % call.num_kv_heads), space)
        unit = take_unit(call) * call.units_at_once
    end_products(arithmetic)


@compiled
def _load_entry(address: int) -> Entry:
    return Entry(
        load_int64(address),
        load_int64(address + 8),
        load_int64(address + 16),
        load_int64(address + 24),
        load_int64(address + 32),
        load_int64(address + 40),
        load_int64(address + 48),
        load_int64(address + 56),
        load_int64(address + 64),
    )


@compiled
def _attend_rows(arithmetic: Any, call: Call, rows: Rows, space: Workspace) -> None:
    entry, kv_head = rows.entry, rows.kv_head
    if call.phase != MERGE:
        number_tiles(call, entry, space)
        _gather_queries(arithmetic, call, rows, space)
    if call.phase == CHUNKS:
        chunk = entry.first_chunk
        attend_chunk(arithmetic, call, rows, chunk, kv_head, chunk, space, _partial_of(call, rows, chunk))
        return
    merged = space.merged if entry.is_first and entry.is_last else _state_of(call, rows)
    if entry.is_first:
        clear(call, rows, merged)
    for chunk in range(entry.first_chunk, entry.end_chunk):
        partial = space.chunk
        if call.phase == MERGE:
            partial = _partial_of(call, rows, chunk)
        elif chunk + 1 < entry.end_chunk:
            attend_chunk(arithmetic, call, rows, chunk, kv_head, chunk + 1, space, partial)
        else:
            next_head = min(kv_head + 1, call.num_kv_heads - 1)
            attend_chunk(arithmetic, call, rows, chunk, next_head, entry.first_chunk, space, partial)
        merge(call, rows, merged, partial)
    if entry.is_last:
        write_output(arithmetic, call, rows, merged)


@compiled
def _partial_of(call: Call, rows: Rows, chunk: int) -> Partial:
    """Of one chunk, between CHUNKS and MERGE."""
    number = rows.entry.partial + (chunk - rows.entry.first_chunk) * call.num_kv_heads + rows.kv_head
    return partial_at(call, call.partials + number * partial_bytes(call))


@compiled
def _state_of(call: Call, rows: Rows) -> Partial:
    """Those of a KV head lie one behind the other, as the rows do."""
    num_tokens = call.num_states // (call.num_kv_heads * call.group)
    first = (rows.kv_head * num_tokens + rows.entry.first_token) * call.group
    peaks = call.states + call.num_states * call.value_head_dim * WORD_BYTES
    totals = peaks + call.num_states * WORD_BYTES
    sums = call.states + first * call.value_head_dim * WORD_BYTES
    return Partial(sums, peaks + first * WORD_BYTES, totals + first * WORD_BYTES)


@compiled
def _gather_queries(arithmetic: Any, call: Call, rows: Rows, space: Workspace) -> None:
    """Copies the rows' queries into one matrix, the left side of the product with the keys."""
    row_bytes = call.head_dim * operand_bytes(arithmetic)
    for row in range(rows.entry.num_queries * call.group):
        token, head = rows.entry.first_token + row // call.group, rows.kv_head * call.group + row % call.group
        source = call.query + token * call.query_token_bytes + head * call.query_head_bytes
        for column in range(0, call.head_dim, LANES):
            query = load_elements(arithmetic, source + column * element_bytes(arithmetic))
            store_operands(arithmetic, query, space.queries + row * row_bytes + column * operand_bytes(arithmetic))
