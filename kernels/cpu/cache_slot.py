"""The way of keys and values into slots of the cache, one token at one KV head at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infer.kernels.cpu.compiler import compiled
from infer.kernels.cpu.layout import AS_COMPUTED, TILE
from infer.kernels.cpu.llvm import LANES
from infer.kernels.cpu.operands import depth_of_step
from infer.kernels.cpu.quantized import store_quantized_key, store_quantized_value
from infer.kernels.cpu.simd import copy_lanes, copy_word, load_int64, prefetch_to_write, spread_half_words
from infer.kernels.kv_pages import LARGEST

if TYPE_CHECKING:
    import torch

    from infer.kernels.kv_pages import KVPages

_LINE_BYTES = 64


def assert_fits(key: torch.Tensor, value: torch.Tensor, pages: KVPages) -> None:
    assert key.dtype == value.dtype, (key.dtype, value.dtype)
    assert pages.key.dtype == pages.value.dtype in (key.dtype, *LARGEST), (pages.key.dtype, pages.value.dtype)


def with_whole_heads(tensor: torch.Tensor) -> torch.Tensor:
    """Tokens and heads may lie in any order, as they do in a transposed view; the elements of a head side by side."""
    return tensor if tensor.stride()[2] == 1 else tensor.contiguous()


def address_and_strides(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Of a tensor `[num_tokens, num_heads, size]`: bytes from a token to the next one, and from a head."""
    token_stride, head_stride, _ = tensor.stride()
    return tensor.data_ptr(), token_stride * tensor.itemsize, head_stride * tensor.itemsize


@compiled
def tile_of(call: Any, slot: int, kv_head: int) -> int:
    """The number of the tile in which the slot lies. Its lane there is `slot % TILE`."""
    block, in_block = slot // call.block_size, slot % call.block_size
    tile: int = (block * call.num_kv_heads + kv_head) * (call.block_size // TILE) + in_block // TILE
    return tile


@compiled
def bring_next_slot(arithmetic: Any, call: Any, token: int) -> None:
    """Starts to bring the lines near that are written for the token after this one. Each word of a key is in another
    line, and stores alone would wait for them one by one."""
    if token + 1 >= call.num_rows:
        return
    slot = load_int64(call.slot_mapping + 8 * (token + 1))
    if slot // TILE == load_int64(call.slot_mapping + 8 * token) // TILE:
        return
    depth = depth_of_step(arithmetic)
    size = 4 // depth if call.page_format == AS_COMPUTED else 1
    key_bytes, value_bytes = call.head_dim * TILE * size, call.value_head_dim * depth * size
    for head in range(call.num_kv_heads):
        tile = tile_of(call, slot, head)
        key = call.key_cache + tile * key_bytes
        for address in range(key, key + key_bytes, _LINE_BYTES):
            prefetch_to_write(address)
        value = call.value_cache + (tile * (TILE // depth) + slot % TILE // depth) * value_bytes
        for address in range(value, value + value_bytes, _LINE_BYTES):
            prefetch_to_write(address)


@compiled
def store_key(arithmetic: Any, call: Any, source: int, tile: int, lane: int) -> None:
    if call.page_format != AS_COMPUTED:
        store_quantized_key(arithmetic, call, source, tile, lane)
        return
    num_words = call.head_dim // depth_of_step(arithmetic)
    target = call.key_cache + (tile * num_words * TILE + lane) * 4
    for word in range(num_words):
        copy_word(source + word * 4, target + word * TILE * 4)


@compiled
def store_value(arithmetic: Any, call: Any, source: int, tile: int, lane: int) -> None:
    if call.page_format != AS_COMPUTED:
        store_quantized_value(arithmetic, call, source, tile, lane)
        return
    depth = depth_of_step(arithmetic)
    target = call.value_cache + (tile * (TILE // depth) + lane // depth) * call.value_head_dim * 4
    for column in range(0, call.value_head_dim, LANES):
        if depth == 1:
            copy_lanes(source + column * 4, target + column * 4)
        else:
            spread_half_words(source + column * 2, target + column * 4, lane % 2)
