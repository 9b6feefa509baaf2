"""quant_linear on a GPU: int8 products on the tensor cores of every one, fp8 products where they have them.

The accumulator of int8 is exact, so nothing depends on the shape of the tiles. That of fp8 on Hopper keeps some 14 bits
beyond a few additions: it is added to one in float32 after every tile.
"""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from infer.kernels.quant_kernels import QuantKernels
from infer.kernels.quantized_operands import QuantizedTokens, QuantizedWeight
from infer.kernels.triton.quantized_rows import quantize_tokens, quantized_silu_and_mul
from infer.kernels.triton.rms_norm import quantized_add_rms_norm, quantized_rms_norm

_GROUP_SIZE = 8
"""Token tiles that go through the weight side by side, so that each of its tiles comes from DRAM once."""


@dataclass(frozen=True, slots=True)
class _Tile:
    num_tokens: int
    num_channels: int
    depth: int
    """Of both sides, in elements of one byte."""
    num_warps: int
    num_stages: int


def pack_weight(weight: QuantizedWeight) -> QuantizedWeight:
    """As `infer.kernels.quant_linear.pack_weight`: both sides lie along the depth, as the tensor cores want them."""
    return QuantizedWeight(weight.elements.contiguous(), weight.scales, weight.out_features, weight.in_features)


def quant_linear(
    tokens: QuantizedTokens,
    weight: QuantizedWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """As `infer.kernels.quant_linear.quant_linear`."""
    size, num_channels = weight.in_features, weight.out_features
    elements = tokens.elements.view(-1, size)
    num_tokens = len(elements)
    output = torch.empty((*tokens.scales.shape, num_channels), dtype=dtype, device=elements.device)
    if not num_tokens:
        return output
    tile = _tile_for(num_tokens, size)
    grid = (triton.cdiv(num_tokens, tile.num_tokens) * triton.cdiv(num_channels, tile.num_channels),)
    quant_linear_kernel[grid](
        output,
        elements.view(torch.int8),
        tokens.scales,
        weight.elements.view(torch.int8),
        weight.scales,
        bias,
        None if residual is None else residual.contiguous(),
        num_tokens,
        num_channels,
        is_fp8=tokens.elements.dtype is torch.float8_e4m3fn,
        size=size,
        tile_tokens=tile.num_tokens,
        tile_channels=tile.num_channels,
        tile_depth=tile.depth,
        group_size=_GROUP_SIZE,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=False,  # every step is rounded as the reference does
    )
    return output


def _tile_for(num_tokens: int, size: int) -> _Tile:
    """Few tokens are bounded by reading the weight: many programs, each with several loads in flight.

    A depth that divides `size` spares the loop its masks.
    """
    depths = [depth for depth in (256, 128, 64) if size % depth == 0] or [64]
    if num_tokens <= 16:
        return _Tile(16, 64, depths[0], 4, 4)
    if num_tokens <= 32:
        return _Tile(32, 64, depths[0], 4, 3)
    depth = min(depths[0], 128)
    if num_tokens <= 64:
        return _Tile(64, 128, depth, 4, 4)
    return _Tile(128, 128, depth, 8, 3)


@triton.jit(do_not_specialize=["num_tokens"])
def quant_linear_kernel(
    output_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    token_scales_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    weight_scales_ptr: tl.tensor,
    bias_ptr: tl.tensor | None,
    residual_ptr: tl.tensor | None,
    num_tokens: tl.tensor,
    num_channels: tl.tensor,
    is_fp8: tl.constexpr,
    size: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_channels: tl.constexpr,
    tile_depth: tl.constexpr,
    group_size: tl.constexpr,
) -> None:
    """Program `[tile of the output]`. All tensors are contiguous."""
    num_token_tiles = tl.cdiv(num_tokens, tile_tokens)
    programs_per_group = group_size * tl.cdiv(num_channels, tile_channels)
    first_tile = tl.program_id(0) // programs_per_group * group_size
    tiles_in_group = tl.minimum(num_token_tiles - first_tile, group_size)
    in_group = tl.program_id(0) % programs_per_group
    tokens = (first_tile + in_group % tiles_in_group) * tile_tokens + tl.arange(0, tile_tokens)
    channels = in_group // tiles_in_group * tile_channels + tl.arange(0, tile_channels)
    is_token, is_channel = tokens < num_tokens, channels < num_channels
    # Those beyond the edge repeat others and are not stored, so that no load of the loop has to be masked for them.
    token_rows = tl.where(is_token, tokens, 0).to(tl.int64) * size
    channel_rows = tl.where(is_channel, channels, 0).to(tl.int64) * size
    depths = tl.arange(0, tile_depth)
    token_ptrs = tokens_ptr + token_rows[:, None] + depths[None, :]
    weight_ptrs = weight_ptr + channel_rows[None, :] + depths[:, None]
    sums = tl.zeros([tile_tokens, tile_channels], tl.float32 if is_fp8 else tl.int32)
    for start in range(0, size, tile_depth):
        if size % tile_depth == 0:
            left = tl.load(token_ptrs + start)
            right = tl.load(weight_ptrs + start)
        else:
            left = tl.load(token_ptrs + start, mask=(start + depths < size)[None, :], other=0)
            right = tl.load(weight_ptrs + start, mask=(start + depths < size)[:, None], other=0)
        if is_fp8:
            left, right = left.to(tl.float8e4nv, bitcast=True), right.to(tl.float8e4nv, bitcast=True)
            sums = tl.dot(left, right, sums, max_num_imprecise_acc=tile_depth)
        else:
            sums = tl.dot(left, right, sums, out_dtype=tl.int32)
    token_scales = tl.load(token_scales_ptr + tokens, mask=is_token, other=0.0)
    weight_scales = tl.load(weight_scales_ptr + channels, mask=is_channel, other=0.0)
    numbers = sums.to(tl.float32) * token_scales[:, None] * weight_scales[None, :]
    if bias_ptr is not None:
        numbers += tl.load(bias_ptr + channels, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    places = tokens[:, None].to(tl.int64) * num_channels + channels[None, :]
    mask = is_token[:, None] & is_channel[None, :]
    output = numbers.to(output_ptr.dtype.element_ty)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + places, mask=mask, other=0.0).to(tl.float32)
        output = (output.to(tl.float32) + residual).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + places, output, mask=mask)


QUANT_KERNELS = QuantKernels(
    pack_weight,
    quantize_tokens,
    quant_linear,
    quantized_rms_norm,
    quantized_add_rms_norm,
    quantized_silu_and_mul,
)
