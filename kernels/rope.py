"""rotary_embedding: each half of a head turned by the angles of its position (Su et al. 2021, in GPT-NeoX's layout)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend


def rotary_embedding(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, backend: Backend) -> torch.Tensor:
    """`heads * cos + rotate_half(heads) * sin`, both products rounded to the dtype before they are added.

    heads: `[num_tokens, num_heads, head_dim]`, head_dim a multiple of 32; only the elements of a head lie side by side
    cos, sin: `[num_tokens, head_dim]`, contiguous, of the same dtype

    Returns a contiguous tensor of the shape of `heads`.
    """
    assert heads.dim() == 3, heads.shape
    assert heads.stride(2) == 1, heads.stride()
    assert cos.shape == sin.shape == (heads.shape[0], heads.shape[2]), (cos.shape, sin.shape, heads.shape)
    assert cos.dtype == sin.dtype == heads.dtype, (cos.dtype, sin.dtype, heads.dtype)
    return backend.rotary_embedding(heads, cos, sin)
