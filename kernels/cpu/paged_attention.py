"""paged_attention on a CPU: what it computes is said in `infer.kernels.paged_attention`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from infer.kernels.cpu.arithmetic import Arithmetic, available_arithmetic
from infer.kernels.cpu.attend import attention_worker
from infer.kernels.cpu.cache_slot import address_and_strides, with_whole_heads
from infer.kernels.cpu.layout import addresses_and_format, block_size_of, num_kv_heads_of, value_head_dim_of
from infer.kernels.cpu.plan import Shape, plan_attention
from infer.kernels.cpu.threads import run
from infer.kernels.kv_pages import LARGEST

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.kv_pages import KVPages

_LOG2_E = math.log2(math.e)


def paged_attention(
    query: torch.Tensor,
    pages: KVPages,
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
    assert pages.key.dtype == pages.value.dtype in (query.dtype, *LARGEST), (pages.key.dtype, pages.value.dtype)
    assert scale > 0.0, scale
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, value_head_dim = num_kv_heads_of(pages), value_head_dim_of(pages)
    output = query.new_empty(num_tokens, num_heads, value_head_dim)
    if num_tokens == 0:
        return output
    # Named, so that they live until the threads are done: a call has only addresses.
    query = with_whole_heads(query)
    log2_sinks = None if sinks is None else sinks.to(torch.float32) * _LOG2_E
    layer_fields = (
        *address_and_strides(query),
        *addresses_and_format(pages),
        output.data_ptr(),
        0 if log2_sinks is None else log2_sinks.data_ptr(),
        scale * _LOG2_E,
        softcap * _LOG2_E,
    )
    worker = attention_worker(arithmetic or available_arithmetic(query.dtype)[0])
    group, block_size, num_threads = num_heads // num_kv_heads, block_size_of(pages), torch.get_num_threads()
    shape = Shape(num_kv_heads, group, head_dim, value_head_dim, block_size, sliding_window, num_threads)
    for fields in plan_attention(shape, metadata).calls:
        run(worker, layer_fields + fields, num_threads)
    return output
