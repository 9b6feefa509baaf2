"""store_kv on the CPU puts every element of a token where the layout says, and touches nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from infer.kernels.attention_metadata import AttentionMetadata
from infer.kernels.cpu import allocate_kv_cache, paged_attention, store_kv

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def _num_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def place(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slot: int
) -> None:
    """Stores one token as the drawing in `infer.kernels.cpu.layout` has it."""
    block, in_block = divmod(slot, key_cache.shape[2] * 16)
    tile, lane = divmod(in_block, 16)
    if key.dtype == torch.float32:
        key_cache[block, :, tile, :, lane] = key
        value_cache[block, :, tile, lane] = value
    else:
        key_cache[block, :, tile, :, lane] = key.unflatten(1, (-1, 2))
        value_cache[block, :, tile, lane // 2, :, lane % 2] = value


@pytest.mark.usefixtures("_num_threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_tokens", [0, 1, 15, 16, 17, 63, 200])
@pytest.mark.parametrize("block_size", [16, 48])
def test_store_kv_writes_the_slots_and_nothing_else(dtype, num_tokens, block_size) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    key = torch.randn(num_tokens, 3, 48, generator=generator).to(dtype)
    value = torch.randn(num_tokens, 3, 32, generator=generator).to(dtype)
    slots = torch.randperm(10 * block_size, generator=generator).repeat(2)[:num_tokens]
    slots = slots.unique()[torch.randperm(len(slots.unique()), generator=generator)]
    key, value = key[: len(slots)], value[: len(slots)]
    stored = [cache.fill_(torch.nan) for cache in allocate_kv_cache(10, block_size, 3, 48, 32, dtype, CPU)]
    expected = [cache.clone() for cache in stored]
    for slot, token_key, token_value in zip(slots.tolist(), key, value, strict=True):
        place(token_key, token_value, *expected, slot)
    store_kv(key, value, *stored, slots)
    for cache, expected_cache in zip(stored, expected, strict=True):
        torch.testing.assert_close(cache, expected_cache, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_store_kv_takes_slices_of_a_wider_projection(dtype) -> None:
    projection = torch.randn(20, 4, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    slots = torch.arange(20) + 7
    from_slices = allocate_kv_cache(2, 16, 2, 16, 16, dtype, CPU)
    from_copies = allocate_kv_cache(2, 16, 2, 16, 16, dtype, CPU)
    store_kv(projection[:, :2], projection[:, 2:], *from_slices, slots)
    store_kv(projection[:, :2].clone(), projection[:, 2:].clone(), *from_copies, slots)
    for sliced, copied in zip(from_slices, from_copies, strict=True):
        assert torch.equal(sliced, copied)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allocate_kv_cache_gives_zeros_by_block(dtype) -> None:
    key_cache, value_cache = allocate_kv_cache(5, 32, 3, 48, 64, dtype, CPU)
    assert (key_cache.dtype, value_cache.dtype) == (dtype, dtype)
    assert (len(key_cache), len(value_cache)) == (5, 5)
    assert (key_cache.numel(), value_cache.numel()) == (5 * 32 * 3 * 48, 5 * 32 * 3 * 64)
    assert not key_cache.any()
    assert not value_cache.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transposed_views_are_stored_and_attended_to_as_their_copies(dtype):
    num_tokens, num_heads, num_kv_heads, head_dim = 21, 6, 2, 32
    query = torch.randn(num_heads, num_tokens, head_dim).to(dtype).transpose(0, 1)
    key, value = torch.randn(2, num_kv_heads, num_tokens, head_dim).to(dtype).transpose(1, 2)
    metadata = AttentionMetadata(
        slot_mapping=torch.arange(16, 16 + num_tokens),
        block_table=torch.tensor([[1, 2]], dtype=torch.int32),
        query_start_loc=torch.tensor([0, num_tokens], dtype=torch.int32),
        seq_lens=torch.tensor([num_tokens], dtype=torch.int32),
        max_query_len=num_tokens,
        max_seq_len=num_tokens,
        num_decodes=0,
    )

    def attend(query, key, value):
        caches = allocate_kv_cache(3, 16, num_kv_heads, head_dim, head_dim, dtype, CPU)
        store_kv(key, value, *caches, metadata.slot_mapping)
        return paged_attention(query, *caches, metadata, scale=0.2)

    assert not query.is_contiguous()
    assert torch.equal(attend(query, key, value), attend(query.contiguous(), key.contiguous(), value.contiguous()))
