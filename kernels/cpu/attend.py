"""The compiled attention: every thread walks through the same units of work and does those it gets hold of."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numba

from infer.kernels.cpu.call import CHUNKS, MERGE, Call, Rows
from infer.kernels.cpu.chunk import attend_chunk, first_visible, number_tiles
from infer.kernels.cpu.compiler import Worker, compile_worker, compiled
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements, operand_bytes, store_operands
from infer.kernels.cpu.partial import clear, merge, write_output
from infer.kernels.cpu.products import begin_products, end_products
from infer.kernels.cpu.record import take_thread, take_unit
from infer.kernels.cpu.simd import load_int32
from infer.kernels.cpu.workspace import CHUNK, Workspace, partial_at, partial_bytes, workspace_at

if TYPE_CHECKING:
    from infer.kernels.cpu.arithmetic import Arithmetic


@functools.cache
def attention_worker(arithmetic: Arithmetic) -> Worker:
    def attend(call: Any) -> None:
        _attend(arithmetic, numba.carray(call, 1)[0])

    return compile_worker(attend, Call)


@compiled
def _attend(arithmetic: Any, call: Call) -> None:
    space = workspace_at(call, call.workspaces + take_thread(call) * call.workspace_bytes)
    begin_products(arithmetic)
    unit, partials = 0, call.partials
    mine = take_unit(call)
    # Sequences with many queries come last, and their last queries see most keys: begun first, nobody waits for them.
    for sequence in range(call.num_seqs - 1, -1, -1):
        first_token = load_int32(call.query_start_loc + sequence * 4)
        end_token = load_int32(call.query_start_loc + (sequence + 1) * 4)
        position_minus_token = load_int32(call.seq_lens + sequence * 4) - end_token
        num_spans = (end_token - first_token + call.queries_at_once - 1) // call.queries_at_once
        for span in range(num_spans - 1, -1, -1):
            token = first_token + span * call.queries_at_once
            num_queries = min(call.queries_at_once, end_token - token)
            position = position_minus_token + token
            first_chunk = first_visible(call, position) // CHUNK
            end_chunk = (position + num_queries + CHUNK - 1) // CHUNK
            step = 1 if call.phase == CHUNKS else end_chunk - first_chunk
            for kv_head in range(call.num_kv_heads):
                rows = Rows(sequence, kv_head, token, position, num_queries)
                for chunk in range(first_chunk, end_chunk, step):
                    if unit // call.units_at_once == mine:
                        _attend_unit(arithmetic, call, rows, chunk, chunk + step, space, partials)
                        if (unit + 1) % call.units_at_once == 0:
                            mine = take_unit(call)
                    unit += 1
                    partials += step * partial_bytes(call)
    end_products(arithmetic)


@compiled
def _attend_unit(
    arithmetic: Any, call: Call, rows: Rows, first_chunk: int, end_chunk: int, space: Workspace, partials: int
) -> None:
    """partials: address of the first chunk's, if the phase has any"""
    if call.phase != MERGE:
        number_tiles(call, rows, space)
        _gather_queries(arithmetic, call, rows, space)
    if call.phase == CHUNKS:
        attend_chunk(arithmetic, call, rows, first_chunk, rows.kv_head, first_chunk, space, partial_at(call, partials))
        return
    clear(call, rows, space.merged)
    for chunk in range(first_chunk, end_chunk):
        partial = space.chunk
        if call.phase == MERGE:
            partial = partial_at(call, partials + (chunk - first_chunk) * partial_bytes(call))
        elif chunk + 1 < end_chunk:
            attend_chunk(arithmetic, call, rows, chunk, rows.kv_head, chunk + 1, space, partial)
        else:
            next_head = min(rows.kv_head + 1, call.num_kv_heads - 1)
            attend_chunk(arithmetic, call, rows, chunk, next_head, first_chunk, space, partial)
        merge(call, rows, space.merged, partial)
    write_output(arithmetic, call, rows, space.merged)


@compiled
def _gather_queries(arithmetic: Any, call: Call, rows: Rows, space: Workspace) -> None:
    """Copies the rows' queries into one matrix, the left side of the product with the keys."""
    row_bytes = call.head_dim * operand_bytes(arithmetic)
    for row in range(rows.num_queries * call.group):
        token, head = rows.first_token + row // call.group, rows.kv_head * call.group + row % call.group
        source = call.query + token * call.query_token_bytes + head * call.query_head_bytes
        for column in range(0, call.head_dim, LANES):
            query = load_elements(arithmetic, source + column * element_bytes(arithmetic))
            store_operands(arithmetic, query, space.queries + row * row_bytes + column * operand_bytes(arithmetic))
