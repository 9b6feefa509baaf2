"""Scatter of the step's keys and values into the cache, a tile of tokens of one KV head a program."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

_TOKENS_PER_PROGRAM = 16


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """As `infer.kernels.store_kv.store_kv`, on caches `[num_blocks, block_size, num_kv_heads, head_dim]`.

    The last dimension of every tensor must be contiguous; keys and values may be slices of a wider projection.
    """
    tensors = (key, value, key_cache, value_cache, slot_mapping)
    assert all(tensor.stride(-1) == 1 for tensor in tensors), [tensor.stride() for tensor in tensors]
    num_tokens, num_kv_heads, _ = key.shape
    grid = (triton.cdiv(num_tokens, _TOKENS_PER_PROGRAM), num_kv_heads)
    for source, cache in ((key, key_cache), (value, value_cache)):
        head_dim = source.shape[-1]
        scatter_kernel[grid](
            source,
            cache,
            slot_mapping,
            num_tokens,
            source.stride(0),
            source.stride(1),
            cache.stride(0),
            cache.stride(1),
            cache.stride(2),
            block_size=cache.shape[1],
            head_dim=head_dim,
            head_dim_padded=triton.next_power_of_2(head_dim),
            tokens_per_program=_TOKENS_PER_PROGRAM,
            enable_fp_fusion=True,  # named, because Triton 3.10 changes its default
        )


@triton.jit(do_not_specialize=["num_tokens"])
def scatter_kernel(
    source_ptr: tl.tensor,
    cache_ptr: tl.tensor,
    slot_mapping_ptr: tl.tensor,
    num_tokens: tl.tensor,
    source_token_stride: tl.tensor,
    source_head_stride: tl.tensor,
    cache_block_stride: tl.tensor,
    cache_token_stride: tl.tensor,
    cache_head_stride: tl.tensor,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    head_dim_padded: tl.constexpr,
    tokens_per_program: tl.constexpr,
) -> None:
    """Program `[token tile, KV head]`."""
    tokens = tl.program_id(0) * tokens_per_program + tl.arange(0, tokens_per_program)
    head = tl.program_id(1)
    dims = tl.arange(0, head_dim_padded)
    is_token = tokens < num_tokens
    mask = is_token[:, None] & (dims < head_dim)[None, :]
    slots = tl.load(slot_mapping_ptr + tokens, mask=is_token, other=0).to(tl.int64)
    source = tokens.to(tl.int64) * source_token_stride + head * source_head_stride
    cache = (
        slots // block_size * cache_block_stride + slots % block_size * cache_token_stride + head * cache_head_stride
    )
    elements = tl.load(source_ptr + source[:, None] + dims[None, :], mask=mask)
    tl.store(cache_ptr + cache[:, None] + dims[None, :], elements, mask=mask)
