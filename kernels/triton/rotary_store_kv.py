"""rotary_store_kv on a GPU: a tile of tokens of one head a program, a query's or a KV head's with its values."""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from infer.kernels.triton.quantized import layout_of
from infer.kernels.triton.rms_norm import inverse_rms, scale_by
from infer.kernels.triton.store_kv import store_heads

if TYPE_CHECKING:
    import torch

    from infer.kernels.head_norms import HeadNorms
    from infer.kernels.kv_pages import KVPages

_ELEMENTS_PER_PROGRAM = 1024


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
    """As `infer.kernels.rotary_store_kv.rotary_store_kv`, on pages as `infer.kernels.reference.kv_cache` lays them out.

    The last dimension of every tensor must be contiguous.
    """
    tensors = (query, key, value, *pages.tensors(), slot_mapping)
    assert all(tensor.stride(-1) == 1 for tensor in tensors), [tensor.stride() for tensor in tensors]
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, value_head_dim = value.shape[1:]
    turned = query.new_empty(num_tokens, num_heads, head_dim)
    if not num_tokens:
        return turned
    layout = layout_of(pages)
    tokens_per_program = tokens_per_tile(head_dim)
    turn_and_store_kernel[(triton.cdiv(num_tokens, tokens_per_program), num_heads + num_kv_heads)](
        turned,
        query,
        key,
        value,
        cos,
        sin,
        None if norms is None else norms.query_weight,
        None if norms is None else norms.key_weight,
        0.0 if norms is None else norms.eps,
        layout.key,
        layout.value,
        layout.key_scales,
        layout.value_scales,
        slot_mapping,
        num_tokens,
        num_heads,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        layout.key.stride(0),
        layout.key.stride(1),
        layout.key.stride(2),
        layout.value.stride(0),
        layout.value.stride(1),
        layout.value.stride(2),
        layout.scale_block_stride,
        layout.scale_head_stride,
        is_fp8=layout.is_fp8,
        block_size=layout.key.shape[1],
        head_dim=head_dim,
        head_dim_padded=triton.next_power_of_2(head_dim),
        value_head_dim=value_head_dim,
        value_head_dim_padded=triton.next_power_of_2(value_head_dim),
        tokens_per_program=tokens_per_program,
        num_warps=4,
        enable_fp_fusion=False,  # products are rounded as the reference does
    )
    return turned


def tokens_per_tile(head_dim: int) -> int:
    return max(1, _ELEMENTS_PER_PROGRAM // int(triton.next_power_of_2(head_dim)))


@triton.jit(do_not_specialize=["num_tokens", "num_heads"])
def turn_and_store_kernel(
    turned_ptr: tl.tensor,
    query_ptr: tl.tensor,
    key_ptr: tl.tensor,
    value_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    query_weight_ptr: tl.tensor | None,
    key_weight_ptr: tl.tensor | None,
    eps: tl.tensor,
    key_cache_ptr: tl.tensor,
    value_cache_ptr: tl.tensor,
    key_scales_ptr: tl.tensor | None,
    value_scales_ptr: tl.tensor | None,
    slot_mapping_ptr: tl.tensor,
    num_tokens: tl.tensor,
    num_heads: tl.tensor,
    query_token_stride: tl.tensor,
    query_head_stride: tl.tensor,
    key_token_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_token_stride: tl.tensor,
    value_head_stride: tl.tensor,
    key_block_stride: tl.tensor,
    key_slot_stride: tl.tensor,
    key_cache_head_stride: tl.tensor,
    value_block_stride: tl.tensor,
    value_slot_stride: tl.tensor,
    value_cache_head_stride: tl.tensor,
    scale_block_stride: tl.tensor,
    scale_head_stride: tl.tensor,
    is_fp8: tl.constexpr,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    head_dim_padded: tl.constexpr,
    value_head_dim: tl.constexpr,
    value_head_dim_padded: tl.constexpr,
    tokens_per_program: tl.constexpr,
) -> None:
    """Program `[token tile, head]`: the query heads, then the KV heads."""
    tokens = tl.program_id(0).to(tl.int64) * tokens_per_program + tl.arange(0, tokens_per_program)
    head = tl.program_id(1)
    is_token = tokens < num_tokens
    dims = tl.arange(0, head_dim_padded)
    mask = is_token[:, None] & (dims < head_dim)[None, :]
    places = tokens[:, None] * head_dim + dims[None, :]
    cos = tl.load(cos_ptr + places, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + places, mask=mask, other=0.0)
    if head < num_heads:
        query = _turn(
            query_ptr + head * query_head_stride + tokens * query_token_stride,
            cos,
            sin,
            mask,
            query_weight_ptr,
            eps,
            head_dim,
            head_dim_padded,
        )
        tl.store(turned_ptr + tokens[:, None] * (num_heads * head_dim) + head * head_dim + dims[None, :], query, mask)
    else:
        kv_head = head - num_heads
        slots = tl.load(slot_mapping_ptr + tokens, mask=is_token, other=0).to(tl.int64)
        key = _turn(
            key_ptr + kv_head * key_head_stride + tokens * key_token_stride,
            cos,
            sin,
            mask,
            key_weight_ptr,
            eps,
            head_dim,
            head_dim_padded,
        )
        store_heads(
            key,
            slots,
            is_token,
            kv_head,
            key_cache_ptr,
            key_scales_ptr,
            key_block_stride,
            key_slot_stride,
            key_cache_head_stride,
            scale_block_stride,
            scale_head_stride,
            is_fp8,
            block_size,
            head_dim,
            head_dim_padded,
        )
        value_dims = tl.arange(0, value_head_dim_padded)
        value_places = kv_head * value_head_stride + tokens[:, None] * value_token_stride + value_dims[None, :]
        value_mask = is_token[:, None] & (value_dims < value_head_dim)[None, :]
        store_heads(
            tl.load(value_ptr + value_places, mask=value_mask, other=0.0),
            slots,
            is_token,
            kv_head,
            value_cache_ptr,
            value_scales_ptr,
            value_block_stride,
            value_slot_stride,
            value_cache_head_stride,
            scale_block_stride,
            scale_head_stride,
            is_fp8,
            block_size,
            value_head_dim,
            value_head_dim_padded,
        )


@triton.jit
def _turn(
    pointers: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    mask: tl.tensor,
    weight_ptr: tl.tensor | None,
    eps: tl.tensor,
    head_dim: tl.constexpr,
    head_dim_padded: tl.constexpr,
) -> tl.tensor:
    """`[num_tokens, head_dim_padded]`, of the heads that begin at `pointers`, normed where there is a weight. The
    halves are exchanged by a second load, which finds them in the cache."""
    dims = tl.arange(0, head_dim_padded)
    others = tl.where(dims < head_dim // 2, dims + head_dim // 2, dims - head_dim // 2)
    elements = tl.load(pointers[:, None] + dims[None, :], mask=mask, other=0.0)
    exchanged = tl.load(pointers[:, None] + others[None, :], mask=mask, other=0.0)
    if weight_ptr is not None:
        factors = inverse_rms(elements, eps, head_dim)
        is_dim = dims < head_dim
        weight = tl.load(weight_ptr + dims, mask=is_dim, other=0.0)
        other_weight = tl.load(weight_ptr + others, mask=is_dim, other=0.0)
        elements = scale_by(elements, weight[None, :], factors)
        exchanged = scale_by(exchanged, other_weight[None, :], factors)
    signed = tl.where((dims < head_dim // 2)[None, :], -exchanged.to(tl.float32), exchanged.to(tl.float32))
    left = (elements.to(tl.float32) * cos.to(tl.float32)).to(elements.dtype)
    right = (signed * sin.to(tl.float32)).to(elements.dtype)
    return (left.to(tl.float32) + right.to(tl.float32)).to(elements.dtype)
