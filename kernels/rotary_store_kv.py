"""rotary_store_kv: heads normed where the network does so, each half turned by the angles of its position (Su et al.
2021, in GPT-NeoX's layout), and what results for the keys stored with the values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.operators import Work, operator

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend
    from infer.kernels.head_norms import HeadNorms
    from infer.kernels.kv_pages import KVPages


@operator(Work.OTHER)
def rotary_store_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: KVPages,
    slot_mapping: torch.Tensor,
    norms: HeadNorms | None = None,
    *,
    backend: Backend,
) -> torch.Tensor:
    """A head becomes `head * cos + rotate_half(head) * sin`, both products rounded to the dtype before they are added;
    with `norms`, what `infer.kernels.rms_norm.rms_norm` makes of the head takes its place first.

    query: `[num_tokens, num_heads, head_dim]`, head_dim a multiple of 32; only the elements of a head lie side by side
    cos, sin: `[num_tokens, head_dim]`, contiguous, of the same dtype
    the others: as `infer.kernels.store_kv.store_kv` has them

    Returns the turned query in the shape of `query`.
    """
    assert query.dim() == key.dim() == value.dim() == 3, (query.shape, key.shape, value.shape)
    assert key.shape[:2] == value.shape[:2], (key.shape, value.shape)
    num_tokens, _, head_dim = query.shape
    assert cos.shape == sin.shape == (num_tokens, head_dim), (cos.shape, sin.shape, query.shape)
    assert key.shape[2] == head_dim, (key.shape, query.shape)
    assert cos.dtype == sin.dtype == query.dtype == key.dtype, (cos.dtype, sin.dtype, query.dtype, key.dtype)
    assert cos.is_contiguous(), cos.stride()
    assert sin.is_contiguous(), sin.stride()
    assert slot_mapping.shape == key.shape[:1] == (num_tokens,), (slot_mapping.shape, key.shape, query.shape)
    if norms is not None:
        for weight in (norms.query_weight, norms.key_weight):
            assert weight.shape == (head_dim,), (weight.shape, head_dim)
            assert weight.dtype == query.dtype, (weight.dtype, query.dtype)
            assert weight.is_contiguous(), weight.stride()
    return backend.rotary_store_kv(query, key, value, cos, sin, pages, slot_mapping, norms)
