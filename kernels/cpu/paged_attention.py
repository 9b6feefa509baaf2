"""paged_attention on a CPU: what it computes is said in `infer.kernels.paged_attention`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from infer.kernels.cpu.arithmetic import Arithmetic, available_arithmetic
from infer.kernels.cpu.attend import attention_worker
from infer.kernels.cpu.call import CHUNKS, MERGE, WHOLE, Call
from infer.kernels.cpu.layout import block_size_of, num_kv_heads_of, value_head_dim_of
from infer.kernels.cpu.threads import run
from infer.kernels.cpu.workspace import CHUNK, MAX_ROWS, partial_bytes, workspace_at

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata

_LOG2_E = math.log2(math.e)

_SHARES_PER_THREAD = 4
"""A thread's work should have at least so many parts, for all threads to end at about the same time."""


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    arithmetic: Arithmetic | None = None,
) -> torch.Tensor:
    """A query's result depends on its own keys only, to the last bit: not on the batch, nor on how its sequence was cut
    into steps.

    arithmetic: the fastest that the CPU has, unless given
    """
    assert query.dtype == key_cache.dtype == value_cache.dtype, (query.dtype, key_cache.dtype, value_cache.dtype)
    assert scale > 0.0, scale
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, value_head_dim = num_kv_heads_of(key_cache), value_head_dim_of(value_cache)
    group = num_heads // num_kv_heads
    output = query.new_empty(num_tokens, num_heads, value_head_dim)
    # Named, so that they live until the threads are done: a call has only addresses.
    query = query if query.stride(2) == 1 else query.contiguous()
    block_table = metadata.block_table.contiguous()
    log2_sinks = None if sinks is None else sinks.to(torch.float32) * _LOG2_E
    call = Call(
        query=query.data_ptr(),
        query_token_bytes=query.stride(0) * query.itemsize,
        query_head_bytes=query.stride(1) * query.itemsize,
        key_cache=key_cache.data_ptr(),
        value_cache=value_cache.data_ptr(),
        output=output.data_ptr(),
        block_table=block_table.data_ptr(),
        query_start_loc=metadata.query_start_loc.data_ptr(),
        seq_lens=metadata.seq_lens.data_ptr(),
        sinks=0 if log2_sinks is None else log2_sinks.data_ptr(),
        num_seqs=len(metadata.seq_lens),
        max_blocks=block_table.shape[1],
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        block_size=block_size_of(key_cache),
        sliding_window=sliding_window,
        scale=scale * _LOG2_E,
        softcap=softcap * _LOG2_E,
        queries_at_once=min(max(1, MAX_ROWS // group), metadata.max_query_len),
    )
    if num_tokens > 0:
        _attend(call, metadata, arithmetic or available_arithmetic(query.dtype)[0], torch.get_num_threads())
    return output


def _attend(call: Call, metadata: AttentionMetadata, arithmetic: Arithmetic, num_threads: int) -> None:
    worker = attention_worker(arithmetic)
    seq_lens, query_lens = metadata.seq_lens.numpy(), np.diff(metadata.query_start_loc.numpy())
    num_spans = -(-query_lens // call.queries_at_once)
    # In keys to be read by a KV head; a thread's parts are spans, spans at one head, or chunks of these.
    share = int((num_spans * seq_lens).sum()) * call.num_kv_heads / (num_threads * _SHARES_PER_THREAD)
    is_split = num_threads > 1 and metadata.max_seq_len > share
    num_partials = int((num_spans * -(-seq_lens // CHUNK)).sum()) * call.num_kv_heads if is_split else 0
    partials = np.empty(num_partials * partial_bytes(call), np.uint8)
    workspace_bytes = workspace_at(call, 0).end
    workspaces = np.empty(num_threads * workspace_bytes, np.uint8)
    for phase in (CHUNKS, MERGE) if is_split else (WHOLE,):
        counters = np.zeros(2, np.int64)
        started = call._replace(
            phase=phase,
            units_at_once=call.num_kv_heads if metadata.max_seq_len * call.num_kv_heads <= share else 1,
            num_started=counters.ctypes.data,
            num_taken=counters.ctypes.data + counters.itemsize,
            workspaces=workspaces.ctypes.data,
            workspace_bytes=workspace_bytes,
            partials=partials.ctypes.data,
        )
        run(worker, np.array(started, worker.record), num_threads)
