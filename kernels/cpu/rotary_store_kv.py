"""rotary_store_kv on a CPU: what it does is said in `infer.kernels.rotary_store_kv`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from numpy import float32

from infer.kernels.cpu.cache_slot import (
    address_and_strides,
    assert_fits,
    bring_next_slot,
    store_key,
    store_value,
    tile_of,
    with_whole_heads,
)
from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.layout import TILE, addresses_and_format, block_size_of
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import element_bytes, load_elements, round_elements, store_elements
from infer.kernels.cpu.rms_norm import normalise
from infer.kernels.cpu.row_wise import row_worker, run_rows
from infer.kernels.cpu.simd import add, load_int64, multiply, splat

if TYPE_CHECKING:
    import torch

    from infer.kernels.head_norms import HeadNorms
    from infer.kernels.kv_pages import KVPages


class Turn(NamedTuple):
    """One call. Tensors are addresses."""

    query: int
    query_token_bytes: int
    """From a token's heads to the next one's; so for keys, and for values."""
    query_head_bytes: int
    key: int
    key_token_bytes: int
    key_head_bytes: int
    value: int
    value_token_bytes: int
    value_head_bytes: int
    cos: int
    sin: int
    query_norm: int
    """The weight by which each query is normed first; 0 where none is."""
    key_norm: int
    eps: float
    turned: int
    """`[num_tokens, num_heads + num_kv_heads, head_dim]`, contiguous: queries, then keys."""
    key_cache: int
    value_cache: int
    key_scales: int
    value_scales: int
    page_format: int
    slot_mapping: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    block_size: int
    num_rows: int


def rotary_store_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: KVPages,
    slot_mapping: torch.Tensor,
    norms: HeadNorms | None = None,
) -> torch.Tensor:
    """The query that it returns is a view whose tokens lie apart."""
    assert query.dtype == value.dtype, (query.dtype, value.dtype)
    assert_fits(key, value, pages)
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, value_head_dim = value.shape[1:]
    assert head_dim % (2 * LANES) == 0, head_dim
    # Named, so that they live until the threads are done: the record has only addresses.
    query, key, value = with_whole_heads(query), with_whole_heads(key), with_whole_heads(value)
    slot_mapping = slot_mapping.contiguous()
    turned = query.new_empty(num_tokens, num_heads + num_kv_heads, head_dim)
    fields = (
        *address_and_strides(query),
        *address_and_strides(key),
        *address_and_strides(value),
        cos.data_ptr(),
        sin.data_ptr(),
        *((0, 0, 0.0) if norms is None else (norms.query_weight.data_ptr(), norms.key_weight.data_ptr(), norms.eps)),
        turned.data_ptr(),
        *addresses_and_format(pages),
        slot_mapping.data_ptr(),
        num_heads,
        num_kv_heads,
        head_dim,
        value_head_dim,
        block_size_of(pages),
    )
    run_rows(_worker, query.dtype, num_tokens, fields)
    return turned[:, :num_heads]


@compiled
def _turn_and_store(arithmetic: Any, call: Any, token: int) -> None:
    bring_next_slot(arithmetic, call, token)
    dim_bytes = call.head_dim * element_bytes(arithmetic)
    cos, sin = call.cos + token * dim_bytes, call.sin + token * dim_bytes
    turned = call.turned + token * (call.num_heads + call.num_kv_heads) * dim_bytes
    query = call.query + token * call.query_token_bytes
    for head in range(call.num_heads):
        source = query + head * call.query_head_bytes
        _norm_and_turn(arithmetic, call, source, call.query_norm, cos, sin, turned + head * dim_bytes)
    turned += call.num_heads * dim_bytes
    slot = load_int64(call.slot_mapping + 8 * token)
    key, value = call.key + token * call.key_token_bytes, call.value + token * call.value_token_bytes
    for head in range(call.num_kv_heads):
        source = key + head * call.key_head_bytes
        _norm_and_turn(arithmetic, call, source, call.key_norm, cos, sin, turned + head * dim_bytes)
        tile = tile_of(call, slot, head)
        store_key(arithmetic, call, turned + head * dim_bytes, tile, slot % TILE)
        store_value(arithmetic, call, value + head * call.value_head_bytes, tile, slot % TILE)


@compiled
def _norm_and_turn(arithmetic: Any, call: Any, source: int, weight: int, cos: int, sin: int, target: int) -> None:
    if weight != 0:
        normalise(arithmetic, source, target, weight, call.head_dim, call.eps)
        source = target
    _turn(arithmetic, source, cos, sin, call.head_dim * element_bytes(arithmetic), target)


@compiled
def _turn(arithmetic: Any, source: int, cos: int, sin: int, dim_bytes: int, target: int) -> None:
    """`target` may be `source`."""
    half = dim_bytes // 2
    minus = splat(float32(-1.0))
    for offset in range(0, half, LANES * element_bytes(arithmetic)):
        left = load_elements(arithmetic, source + offset)
        right = load_elements(arithmetic, source + half + offset)
        _store_sum(arithmetic, left, multiply(minus, right), cos + offset, sin + offset, target + offset)
        offset += half
        _store_sum(arithmetic, right, left, cos + offset, sin + offset, target + offset)


@compiled
def _store_sum(arithmetic: Any, elements: Any, others: Any, cos: int, sin: int, target: int) -> None:
    """`elements * cos + others * sin`, each product rounded."""
    left = round_elements(arithmetic, multiply(elements, load_elements(arithmetic, cos)))
    right = round_elements(arithmetic, multiply(others, load_elements(arithmetic, sin)))
    store_elements(arithmetic, add(left, right), target)


_worker = row_worker(Turn, _turn_and_store)
