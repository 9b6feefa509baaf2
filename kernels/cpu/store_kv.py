"""store_kv on a CPU: what it does is said in `infer.kernels.store_kv`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numba
import numpy as np
import torch

from infer.kernels.cpu.arithmetic import Arithmetic
from infer.kernels.cpu.compiler import Worker, compile_worker, compiled, record_of
from infer.kernels.cpu.layout import TILE, block_size_of
from infer.kernels.cpu.operands import depth_of_step
from infer.kernels.cpu.simd import copy_half_word, copy_word, load_int64, take_number
from infer.kernels.cpu.threads import run

_TOKENS_AT_ONCE = 32
"""What a thread takes. Less work than that is not worth waking another thread."""


class Store(NamedTuple):
    """One call. Tensors are addresses."""

    key: int
    value: int
    key_cache: int
    value_cache: int
    slot_mapping: int
    num_tokens: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    block_size: int
    key_token_bytes: int
    """From a token's key to the next one's; so for heads, and for values."""
    key_head_bytes: int
    value_token_bytes: int
    value_head_bytes: int
    num_taken: int
    """Of an int64: how often a thread took tokens."""


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    assert key.dtype == value.dtype == key_cache.dtype == value_cache.dtype, (key.dtype, value.dtype, key_cache.dtype)
    num_tokens, num_kv_heads, head_dim = key.shape
    # Named, so that they live until the threads are done: the record has only addresses.
    slot_mapping = slot_mapping.contiguous()
    key, value = _with_whole_rows(key), _with_whole_rows(value)
    num_taken = np.zeros(1, np.int64)
    store = Store(
        key=key.data_ptr(),
        value=value.data_ptr(),
        key_cache=key_cache.data_ptr(),
        value_cache=value_cache.data_ptr(),
        slot_mapping=slot_mapping.data_ptr(),
        num_tokens=num_tokens,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        value_head_dim=value.shape[2],
        block_size=block_size_of(key_cache),
        key_token_bytes=key.stride(0) * key.itemsize,
        key_head_bytes=key.stride(1) * key.itemsize,
        value_token_bytes=value.stride(0) * value.itemsize,
        value_head_bytes=value.stride(1) * value.itemsize,
        num_taken=num_taken.ctypes.data,
    )
    worker = _store_worker(Arithmetic.FLOAT32 if key.dtype == torch.float32 else Arithmetic.BFLOAT16_WIDENED)
    num_threads = min(torch.get_num_threads(), -(-num_tokens // _TOKENS_AT_ONCE))
    run(worker, np.array(store, worker.record), num_threads)


def _with_whole_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Tokens and heads may lie in any order, as they do in a transposed view; the elements of a head side by side."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


@functools.cache
def _store_worker(arithmetic: Arithmetic) -> Worker:
    """By the dtype alone: the arithmetics of bfloat16 share a layout."""

    def store(call: Any) -> None:
        _store(arithmetic, numba.carray(call, 1)[0])

    return compile_worker(store, record_of(Store))


@compiled
def _store(arithmetic: Any, call: Any) -> None:
    while True:
        first = take_number(call.num_taken) * _TOKENS_AT_ONCE
        if first >= call.num_tokens:
            return
        for token in range(first, min(first + _TOKENS_AT_ONCE, call.num_tokens)):
            slot = load_int64(call.slot_mapping + 8 * token)
            block, in_block = slot // call.block_size, slot % call.block_size
            for head in range(call.num_kv_heads):
                tile = (block * call.num_kv_heads + head) * (call.block_size // TILE) + in_block // TILE
                key = call.key + token * call.key_token_bytes + head * call.key_head_bytes
                value = call.value + token * call.value_token_bytes + head * call.value_head_bytes
                _store_key(arithmetic, call, key, tile, in_block % TILE)
                _store_value(arithmetic, call, value, tile, in_block % TILE)


@compiled
def _store_key(arithmetic: Any, call: Any, source: int, tile: int, lane: int) -> None:
    num_words = call.head_dim // depth_of_step(arithmetic)
    target = call.key_cache + (tile * num_words * TILE + lane) * 4
    for word in range(num_words):
        copy_word(source + word * 4, target + word * TILE * 4)


@compiled
def _store_value(arithmetic: Any, call: Any, source: int, tile: int, lane: int) -> None:
    depth = depth_of_step(arithmetic)
    first_word = (tile * (TILE // depth) + lane // depth) * call.value_head_dim
    if depth == 1:
        for column in range(call.value_head_dim):
            copy_word(source + column * 4, call.value_cache + (first_word + column) * 4)
    else:
        target = call.value_cache + first_word * 4 + lane % 2 * 2
        for column in range(call.value_head_dim):
            copy_half_word(source + column * 2, target + column * 4)
