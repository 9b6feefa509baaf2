"""store_kv on the CPU puts every element of a token where the layout says, and touches nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from paged_cases import fill_with_nan

from infer.kernels.attention_metadata import AttentionMetadata
from infer.kernels.cpu import allocate_kv_cache, paged_attention, store_kv
from infer.kernels.kv_pages import LARGEST, KVPages
from infer.kernels.reference.quantize import quantize

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
CACHE_DTYPES = pytest.mark.parametrize("cache_dtype", [None, *LARGEST], ids=str)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def _num_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def place(key: torch.Tensor, value: torch.Tensor, pages: KVPages, slot: int) -> None:
    """Stores one token as the drawing in `infer.kernels.cpu.layout` has it."""
    block, in_block = divmod(slot, pages.key.shape[2] * 16)
    tile, lane = divmod(in_block, 16)
    has_pairs = key.dtype == torch.bfloat16
    if pages.key_scales is not None:
        key, pages.key_scales[block, :, tile, lane] = quantize(key, pages.key.dtype)
        value, pages.value_scales[block, :, tile, lane] = quantize(value, pages.value.dtype)
    if has_pairs:
        pages.key[block, :, tile, :, lane] = key.unflatten(1, (-1, 2))
        pages.value[block, :, tile, lane // 2, :, lane % 2] = value
    else:
        pages.key[block, :, tile, :, lane] = key
        pages.value[block, :, tile, lane] = value


def allocate(*sizes: int, dtype: torch.dtype, cache_dtype: torch.dtype | None = None) -> KVPages:
    return allocate_kv_cache(*sizes, dtype, cache_dtype or dtype, CPU)


@pytest.mark.usefixtures("_num_threads")
@CACHE_DTYPES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_tokens", [0, 1, 15, 16, 17, 63, 200])
@pytest.mark.parametrize("block_size", [16, 48])
def test_store_kv_writes_the_slots_and_nothing_else(dtype, cache_dtype, num_tokens, block_size) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    key = torch.randn(num_tokens, 3, 48, generator=generator).to(dtype)
    value = torch.randn(num_tokens, 3, 32, generator=generator).to(dtype)
    slots = torch.randperm(10 * block_size, generator=generator).repeat(2)[:num_tokens]
    slots = slots.unique()[torch.randperm(len(slots.unique()), generator=generator)]
    key, value = key[: len(slots)], value[: len(slots)]
    stored = allocate(10, block_size, 3, 48, 32, dtype=dtype, cache_dtype=cache_dtype)
    fill_with_nan(stored)
    expected = KVPages(*(tensor.clone() for tensor in stored.tensors()))
    for slot, token_key, token_value in zip(slots.tolist(), key, value, strict=True):
        place(token_key, token_value, expected, slot)
    store_kv(key, value, stored, slots)
    assert_same_bits(stored, expected)


@pytest.mark.parametrize("cache_dtype", LARGEST, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_of_any_size_are_quantized_as_the_reference_does(dtype, cache_dtype) -> None:
    """Zeros, ties, what is subnormal in float32, bfloat16 or fp8, and every size between."""
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(400, 1, 64, generator=generator) * 2.0 ** torch.randint(-140, 120, (400, 1, 1))
    value = torch.randn(400, 1, 64, generator=generator) * 2.0 ** torch.randint(-20, 0, (400, 1, 64))
    key[0], key[1, 0, :] = 0.0, torch.arange(64) * 2.0 - 127.0
    key[2, 0, :], value[:200, :, 0] = torch.arange(64) / 512, 448.0
    key, value = key.to(dtype), value.to(dtype)
    stored, expected = (allocate(25, 16, 1, 64, 64, dtype=dtype, cache_dtype=cache_dtype) for _ in range(2))
    for slot in range(400):
        place(key[slot], value[slot], expected, slot)
    store_kv(key, value, stored, torch.arange(400))
    assert_same_bits(stored, expected)


def assert_same_bits(pages: KVPages, expected: KVPages) -> None:
    for tensor, expected_tensor in zip(pages.tensors(), expected.tensors(), strict=True):
        assert torch.equal(tensor.view(torch.uint8), expected_tensor.view(torch.uint8))


@CACHE_DTYPES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_store_kv_takes_slices_of_a_wider_projection(dtype, cache_dtype) -> None:
    projection = torch.randn(20, 4, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    slots = torch.arange(20) + 7
    from_slices, from_copies = (allocate(2, 16, 2, 16, 16, dtype=dtype, cache_dtype=cache_dtype) for _ in range(2))
    store_kv(projection[:, :2], projection[:, 2:], from_slices, slots)
    store_kv(projection[:, :2].clone(), projection[:, 2:].clone(), from_copies, slots)
    assert_same_bits(from_slices, from_copies)


@CACHE_DTYPES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allocate_kv_cache_gives_zeros_by_block(dtype, cache_dtype) -> None:
    pages = allocate(5, 32, 3, 48, 64, dtype=dtype, cache_dtype=cache_dtype)
    tensors = list(pages.tensors())
    assert (pages.key.dtype, pages.value.dtype) == (cache_dtype or dtype, cache_dtype or dtype)
    assert {len(tensor) for tensor in tensors} == {5}
    num_heads = 5 * 32 * 3
    scales = [num_heads, num_heads] if cache_dtype else []
    assert [tensor.numel() for tensor in tensors] == [num_heads * 48, num_heads * 64, *scales]
    assert not any(tensor.float().any() for tensor in tensors)


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
        pages = allocate(3, 16, num_kv_heads, head_dim, head_dim, dtype=dtype)
        store_kv(key, value, pages, metadata.slot_mapping)
        return paged_attention(query, pages, metadata, scale=0.2)

    assert not query.is_contiguous()
    assert torch.equal(attend(query, key, value), attend(query.contiguous(), key.contiguous(), value.contiguous()))
