"""Scatter of the step's keys and values into the cache, a tile of tokens of one KV head a program."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from infer.kernels.triton.quantized import layout_of, quantize

if TYPE_CHECKING:
    import torch

    from infer.kernels.kv_pages import KVPages

_TOKENS_PER_PROGRAM = 16


def store_kv(key: torch.Tensor, value: torch.Tensor, pages: KVPages, slot_mapping: torch.Tensor) -> None:
    """As `infer.kernels.store_kv.store_kv`, on pages as `infer.kernels.reference.kv_cache` lays them out.

    The last dimension of every tensor must be contiguous; keys and values may be slices of a wider projection.
    """
    tensors = (key, value, *pages.tensors(), slot_mapping)
    assert all(tensor.stride(-1) == 1 for tensor in tensors), [tensor.stride() for tensor in tensors]
    num_tokens, num_kv_heads, _ = key.shape
    grid = (triton.cdiv(num_tokens, _TOKENS_PER_PROGRAM), num_kv_heads)
    layout = layout_of(pages)
    for source, cache, scales in (
        (key, layout.key, layout.key_scales),
        (value, layout.value, layout.value_scales),
    ):
        head_dim = source.shape[-1]
        scatter_kernel[grid](
            source,
            cache,
            scales,
            slot_mapping,
            num_tokens,
            source.stride(0),
            source.stride(1),
            cache.stride(0),
            cache.stride(1),
            cache.stride(2),
            layout.scale_block_stride,
            layout.scale_head_stride,
            is_fp8=layout.is_fp8,
            block_size=cache.shape[1],
            head_dim=head_dim,
            head_dim_padded=triton.next_power_of_2(head_dim),
            tokens_per_program=_TOKENS_PER_PROGRAM,
            enable_fp_fusion=False,  # elements are rounded as the reference does
        )


@triton.jit(do_not_specialize=["num_tokens"])
def scatter_kernel(
    source_ptr: tl.tensor,
    cache_ptr: tl.tensor,
    scales_ptr: tl.tensor | None,
    slot_mapping_ptr: tl.tensor,
    num_tokens: tl.tensor,
    source_token_stride: tl.tensor,
    source_head_stride: tl.tensor,
    cache_block_stride: tl.tensor,
    cache_token_stride: tl.tensor,
    cache_head_stride: tl.tensor,
    scale_block_stride: tl.tensor,
    scale_head_stride: tl.tensor,
    is_fp8: tl.constexpr,
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
    slots = tl.load(slot_mapping_ptr + tokens, mask=is_token, other=0).to(tl.int64)
    source = tokens.to(tl.int64) * source_token_stride + head * source_head_stride
    mask = is_token[:, None] & (dims < head_dim)[None, :]
    elements = tl.load(source_ptr + source[:, None] + dims[None, :], mask=mask, other=0.0)
    store_heads(
        elements,
        slots,
        is_token,
        head,
        cache_ptr,
        scales_ptr,
        cache_block_stride,
        cache_token_stride,
        cache_head_stride,
        scale_block_stride,
        scale_head_stride,
        is_fp8,
        block_size,
        head_dim,
        head_dim_padded,
    )


@triton.jit
def store_heads(
    elements: tl.tensor,
    slots: tl.tensor,
    is_token: tl.tensor,
    head: tl.tensor,
    cache_ptr: tl.tensor,
    scales_ptr: tl.tensor | None,
    cache_block_stride: tl.tensor,
    cache_token_stride: tl.tensor,
    cache_head_stride: tl.tensor,
    scale_block_stride: tl.tensor,
    scale_head_stride: tl.tensor,
    is_fp8: tl.constexpr,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    head_dim_padded: tl.constexpr,
) -> None:
    """Put one head of several tokens, `[num_tokens, head_dim_padded]`, into the slots of those that are some."""
    dims = tl.arange(0, head_dim_padded)
    blocks, offsets = slots // block_size, slots % block_size
    cache = blocks * cache_block_stride + offsets * cache_token_stride + head * cache_head_stride
    if scales_ptr is not None:
        elements, scales = quantize(elements, is_fp8)
        tl.store(scales_ptr + blocks * scale_block_stride + head * scale_head_stride + offsets, scales, mask=is_token)
    mask = is_token[:, None] & (dims < head_dim)[None, :]
    tl.store(cache_ptr + cache[:, None] + dims[None, :], elements, mask=mask)
