"""Merging the softmaxes of chunks (Milakov & Gimelshein 2018), always in the order of the chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy import float32

from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, store_elements
from infer.kernels.cpu.simd import (
    exp2,
    first_lane,
    load,
    load_float,
    multiply,
    multiply_add,
    splat,
    store,
    store_float,
)
from infer.kernels.cpu.softmax import LOWEST
from infer.kernels.cpu.workspace import WORD_BYTES

if TYPE_CHECKING:
    from infer.kernels.cpu.call import Call, Partial, Rows

_VECTOR_BYTES = LANES * WORD_BYTES


@compiled
def clear(call: Call, rows: Rows, merged: Partial) -> None:
    """No keys yet; of a head with a sink, the sink alone."""
    num_rows = rows.entry.num_queries * call.group
    for offset in range(0, num_rows * call.value_head_dim * WORD_BYTES, _VECTOR_BYTES):
        store(splat(float32(0.0)), merged.sums + offset)
    for row in range(num_rows):
        peak, total = LOWEST, float32(0.0)
        if call.sinks != 0:
            peak = load_float(call.sinks + (rows.kv_head * call.group + row % call.group) * WORD_BYTES)
            total = float32(1.0)
        store_float(peak, merged.peaks + row * WORD_BYTES)
        store_float(total, merged.totals + row * WORD_BYTES)


@compiled
def merge(call: Call, rows: Rows, merged: Partial, chunk: Partial) -> None:
    """Adds `chunk` to `merged`."""
    row_bytes = call.value_head_dim * WORD_BYTES
    for row in range(rows.entry.num_queries * call.group):
        scalar = row * WORD_BYTES
        merged_peak, chunk_peak = load_float(merged.peaks + scalar), load_float(chunk.peaks + scalar)
        peak = max(merged_peak, chunk_peak)
        merged_scale, chunk_scale = exp2(splat(merged_peak - peak)), exp2(splat(chunk_peak - peak))
        chunk_total = multiply(splat(load_float(chunk.totals + scalar)), chunk_scale)
        total = multiply_add(splat(load_float(merged.totals + scalar)), merged_scale, chunk_total)
        store_float(peak, merged.peaks + scalar)
        store_float(first_lane(total), merged.totals + scalar)
        for offset in range(row * row_bytes, (row + 1) * row_bytes, _VECTOR_BYTES):
            added = multiply(load(chunk.sums + offset), chunk_scale)
            store(multiply_add(load(merged.sums + offset), merged_scale, added), merged.sums + offset)


@compiled
def write_output(arithmetic: Any, call: Call, rows: Rows, merged: Partial) -> None:
    num_heads = call.num_kv_heads * call.group
    for row in range(rows.entry.num_queries * call.group):
        head = (rows.entry.first_token + row // call.group) * num_heads + rows.kv_head * call.group + row % call.group
        inverse = splat(float32(1.0) / load_float(merged.totals + row * WORD_BYTES))
        for column in range(0, call.value_head_dim, LANES):
            sums = load(merged.sums + (row * call.value_head_dim + column) * WORD_BYTES)
            address = call.output + (head * call.value_head_dim + column) * element_bytes(arithmetic)
            store_elements(arithmetic, multiply(sums, inverse), address)
