"""store_kv on a CPU: what it does is said in `infer.kernels.store_kv`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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
from infer.kernels.cpu.row_wise import row_worker, run_rows
from infer.kernels.cpu.simd import load_int64

if TYPE_CHECKING:
    import torch

    from infer.kernels.kv_pages import KVPages


class Store(NamedTuple):
    """One call. Tensors are addresses."""

    key: int
    key_token_bytes: int
    """From a token's key to the next one's; so for heads, and for values."""
    key_head_bytes: int
    value: int
    value_token_bytes: int
    value_head_bytes: int
    key_cache: int
    value_cache: int
    key_scales: int
    value_scales: int
    page_format: int
    slot_mapping: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    block_size: int
    num_rows: int


def store_kv(key: torch.Tensor, value: torch.Tensor, pages: KVPages, slot_mapping: torch.Tensor) -> None:
    assert_fits(key, value, pages)
    num_tokens, num_kv_heads, head_dim = key.shape
    # Named, so that they live until the threads are done: the record has only addresses.
    slot_mapping = slot_mapping.contiguous()
    key, value = with_whole_heads(key), with_whole_heads(value)
    fields = (
        *address_and_strides(key),
        *address_and_strides(value),
        *addresses_and_format(pages),
        slot_mapping.data_ptr(),
        num_kv_heads,
        head_dim,
        value.shape[2],
        block_size_of(pages),
    )
    run_rows(_worker, key.dtype, num_tokens, fields)


@compiled
def _store(arithmetic: Any, call: Any, token: int) -> None:
    bring_next_slot(arithmetic, call, token)
    slot = load_int64(call.slot_mapping + 8 * token)
    key, value = call.key + token * call.key_token_bytes, call.value + token * call.value_token_bytes
    for head in range(call.num_kv_heads):
        tile = tile_of(call, slot, head)
        store_key(arithmetic, call, key + head * call.key_head_bytes, tile, slot % TILE)
        store_value(arithmetic, call, value + head * call.value_head_bytes, tile, slot % TILE)


_worker = row_worker(Store, _store)
