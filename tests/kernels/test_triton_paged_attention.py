"""Paged attention in Triton equals the reference. Only a GPU is asked in bfloat16, which the interpreter gets wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from paged_cases import make_paged_case, nan_filled_outputs

from infer.kernels import reference
from infer.kernels.kv_pages import LARGEST

if TYPE_CHECKING:
    from paged_cases import PagedCase

triton_kernels = pytest.importorskip("infer.kernels.triton")

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
INTERPRETED = [torch.float32, torch.float16]
SINKS = torch.tensor([-2.0, 9.0])


def attend(case: PagedCase, device: str, sinks: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    case = case.to(device)
    with nan_filled_outputs():
        output: torch.Tensor = triton_kernels.paged_attention(
            case.query,
            case.pages,
            case.metadata,
            scale=case.query.shape[-1] ** -0.5,
            sinks=None if sinks is None else sinks.to(device),
            **options,
        )
    return output.cpu()


def check(device: str, case: PagedCase, **options: Any) -> None:
    scale = case.query.shape[-1] ** -0.5
    expected = reference.paged_attention(case.query, case.pages, case.metadata, scale=scale, **options)
    tolerance = TOLERANCE[case.query.dtype]
    torch.testing.assert_close(attend(case, device, **options), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", INTERPRETED, ids=str)
@pytest.mark.parametrize(
    ("query_lens", "seq_lens"),
    [
        pytest.param([1], [1], id="one token"),
        pytest.param([1, 1, 1], [1, 64, 150], id="decode"),
        pytest.param([3, 64, 2], [3, 64, 2], id="prefill"),
        pytest.param([5, 1, 70], [100, 30, 90], id="chunks"),
        pytest.param([1, 1, 7, 1, 3], [12, 5, 20, 6, 3], id="mixed"),
    ],
)
def test_triton_paged_attention_equals_the_reference(
    triton_device: str, query_lens: list[int], seq_lens: list[int], dtype: torch.dtype
) -> None:
    check(triton_device, make_paged_case(query_lens, seq_lens, dtype=dtype))


@pytest.mark.parametrize("dtype", INTERPRETED, ids=str)
@pytest.mark.parametrize(
    "sizes",
    [
        {"num_heads": 3, "num_kv_heads": 3},
        {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "block_size": 16},
        {"num_heads": 20, "num_kv_heads": 1},
        {"head_dim": 8, "value_head_dim": 5},
        {"head_dim": 80, "value_head_dim": 40},
        {"head_dim": 256, "num_heads": 2, "num_kv_heads": 1},
        {"block_size": 1},
        {"block_size": 7},
        {"block_size": 128},
    ],
    ids=str,
)
def test_triton_paged_attention_equals_the_reference_for_odd_sizes(
    triton_device: str, sizes: dict[str, int], dtype: torch.dtype
) -> None:
    check(triton_device, make_paged_case([1, 1, 5, 30], [3, 40, 10, 45], dtype=dtype, **sizes))


@pytest.mark.parametrize("dtype", INTERPRETED, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"sliding_window": 1}, id="window of 1"),
        pytest.param({"sliding_window": 7}, id="window of 7"),
        pytest.param({"sliding_window": 60}, id="window of 60"),
        pytest.param({"softcap": 2.0}, id="softcap"),
        pytest.param({"sinks": torch.tensor([-2.0, 0.0, 1.0, 3.0])}, id="sinks"),
        pytest.param({"sliding_window": 9, "softcap": 3.0, "sinks": torch.tensor([-1.0, 0.0, 2.0, 4.0])}, id="all"),
    ],
)
def test_triton_paged_attention_equals_the_reference_with_options(
    triton_device: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    window = options.get("sliding_window", 0)
    case = make_paged_case([1, 1, 3, 40], [9, 80, 3, 90], dtype=dtype, sliding_window=window)
    check(triton_device, case, **options)


@pytest.mark.parametrize("cache_dtype", LARGEST, ids=str)
@pytest.mark.parametrize("dtype", INTERPRETED, ids=str)
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"head_dim": 80, "value_head_dim": 40, "block_size": 7}, {}, id="odd sizes"),
        pytest.param({"sliding_window": 60}, {"sliding_window": 60, "softcap": 2.0}, id="options"),
    ],
)
def test_triton_paged_attention_of_quantized_pages_equals_the_reference(
    triton_device: str, sizes: dict[str, int], options: dict[str, Any], dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    check(
        triton_device,
        make_paged_case([1, 1, 3, 40], [9, 80, 3, 90], dtype=dtype, cache_dtype=cache_dtype, **sizes),
        **options,
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"sliding_window": 520}, id="window"),
        pytest.param({"sinks": torch.tensor([2.0, 5.0])}, id="sinks"),
    ],
)
def test_triton_decode_merges_splits_of_a_long_sequence(triton_device: str, options: dict[str, Any]) -> None:
    sizes = {"num_heads": 2, "num_kv_heads": 1, "block_size": 16, "dtype": torch.float16}
    window = options.get("sliding_window", 0)
    check(triton_device, make_paged_case([1, 1, 1], [512, 513, 1030], sliding_window=window, **sizes), **options)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"sinks": torch.tensor([2.0, 5.0])}, id="sinks"),
    ],
)
def test_triton_decode_of_a_sequence_has_the_same_bits_in_every_batch(
    triton_device: str, options: dict[str, Any]
) -> None:
    sizes = {"num_heads": 2, "num_kv_heads": 1, "block_size": 16, "dtype": torch.float16}
    alone = make_paged_case([1], [300], **sizes)
    batched = make_paged_case([1, 1, 4], [300, 700, 9], **sizes)
    slots = alone.metadata.block_table[0, :19].long(), batched.metadata.block_table[0, :19].long()
    for mine, other in zip(batched.pages.tensors(), alone.pages.tensors(), strict=True):
        mine[slots[1]] = other[slots[0]]
    batched.query[0] = alone.query[0]
    expected = attend(alone, triton_device, **options)[0]
    assert torch.equal(attend(batched, triton_device, **options)[0], expected)


@pytest.mark.parametrize(
    ("groups", "sizes", "options"),
    [
        pytest.param([[0, 4, 0, 3]], {}, {}, id="one"),
        pytest.param([[0, 4, 0, 3]], {"dtype": torch.float16, "cache_dtype": torch.int8}, {}, id="int8"),
        pytest.param([[0, 5, 0, 2], [0, 2, 2, 5], [2, 5, 2, 3]], {"dtype": torch.float16}, {}, id="nested"),
        pytest.param([[0, 5, 0, 2], [0, 2, 2, 5], [2, 5, 2, 3]], {"num_heads": 12}, {}, id="several tiles of queries"),
        pytest.param([[0, 3, 0, 35]], {}, {}, id="longer than a split"),
        pytest.param([[1, 5, 0, 2], [5, 7, 0, 1]], {}, {"softcap": 2.0, "sinks": SINKS}, id="options"),
        pytest.param([[0, 4, 0, 3]], {}, {"sliding_window": 30}, id="window"),
    ],
)
def test_triton_attention_of_shared_prefixes_equals_the_reference(
    triton_device: str, groups: list[list[int]], sizes: dict[str, Any], options: dict[str, Any]
) -> None:
    sizes = {"num_heads": 2, "num_kv_heads": 1, "block_size": 16} | sizes
    case = make_paged_case([1, 1, 1, 1, 1, 4, 3], [600, 570, 561, 81, 90, 20, 50], **sizes)
    check(triton_device, share_blocks(case, groups), **options)


def test_triton_decode_of_a_sequence_without_keys_is_zero(triton_device: str) -> None:
    case = make_paged_case([1, 1, 1], [600, 40, 9], block_size=16)
    expected = attend(case, triton_device)
    case.metadata.seq_lens[1] = 0
    output = attend(case, triton_device)
    assert output[1].count_nonzero() == 0
    assert torch.equal(output[[0, 2]], expected[[0, 2]])


def share_blocks(case: PagedCase, groups: list[list[int]]) -> PagedCase:
    """The sequences of each group hold the blocks of its first one."""
    table = case.metadata.block_table
    for first_seq, end_seq, first_block, end_block in groups:
        table[first_seq:end_seq, first_block:end_block] = table[first_seq, first_block:end_block].clone()
    shared = torch.tensor(groups, dtype=torch.int32)
    return replace(case, metadata=replace(case.metadata, shared_prefixes=shared))


def test_triton_paged_attention_takes_a_slice_of_a_wider_projection(triton_device: str) -> None:
    case = make_paged_case([1, 6], [40, 9]).to(triton_device)
    arguments = (case.pages, case.metadata)
    projection = torch.cat([case.query, torch.full_like(case.query, torch.nan)], 1)
    sliced = triton_kernels.paged_attention(projection[:, :4], *arguments, scale=0.3)
    assert torch.equal(sliced, triton_kernels.paged_attention(case.query, *arguments, scale=0.3))


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("cache_dtype", [None, *LARGEST], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_triton_paged_attention_equals_the_reference_in_bfloat16(
    head_dim: int, cache_dtype: torch.dtype | None
) -> None:
    sizes = {"num_heads": 16, "num_kv_heads": 4, "block_size": 16, "head_dim": head_dim, "cache_dtype": cache_dtype}
    check("cuda", make_paged_case([1, 1, 5, 300], [700, 3, 90, 1000], dtype=torch.bfloat16, **sizes))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("cache_dtype", [None, *LARGEST], ids=str)
@pytest.mark.parametrize("num_heads", [8, 24, 64])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_triton_attention_of_shared_prefixes_equals_the_reference_in_bfloat16(
    head_dim: int, num_heads: int, cache_dtype: torch.dtype | None
) -> None:
    """More work than there are programs at a time, in tiles of all their rows."""
    seq_lens = [1700 + 13 * number for number in range(96)]
    sizes = {"num_heads": num_heads, "num_kv_heads": 8, "block_size": 16, "head_dim": head_dim}
    case = make_paged_case([1] * 96, seq_lens, dtype=torch.bfloat16, cache_dtype=cache_dtype, **sizes)
    check("cuda", share_blocks(case, [[0, 90, 0, 40], [0, 30, 40, 100], [30, 33, 40, 99], [90, 96, 0, 7]]))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("options", [{}, {"sliding_window": 1000}], ids=str)
def test_triton_prefill_of_long_prompts_equals_the_reference_in_bfloat16(options: dict[str, Any]) -> None:
    sizes = {"num_heads": 32, "num_kv_heads": 8, "block_size": 16, "head_dim": 128, "dtype": torch.bfloat16}
    check("cuda", make_paged_case([2048, 1000, 77], [2048, 3000, 4000], **sizes), **options)


@pytest.mark.gpu
@needs_gpu
def test_captured_triton_attention_plans_again_at_every_replay() -> None:
    """A graph follows the tensors of its metadata: other lengths, other shared prefixes, sequences that pad."""
    sizes = {"num_heads": 8, "num_kv_heads": 2, "block_size": 16, "dtype": torch.bfloat16}
    case = make_paged_case([1] * 6, [1600, 1500, 1400, 900, 40, 1], **sizes)
    groups = [[0, 3, 0, 40], [0, 0, 0, 0]]
    on_device = share_blocks(case, groups).to("cuda")
    arguments = (on_device.query, on_device.pages, on_device.metadata)
    triton_kernels.paged_attention(*arguments, scale=0.25)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = triton_kernels.paged_attention(*arguments, scale=0.25)
    other = make_paged_case([1] * 6, [900, 1600, 1200, 1100, 700, 30], **sizes, seed=1)
    other = share_blocks(other, [[0, 2, 0, 33], [2, 5, 0, 9]])
    width = other.metadata.block_table.shape[1]
    on_device.query.copy_(other.query)
    for mine, stored in zip(on_device.pages.tensors(), other.pages.tensors(), strict=True):
        mine[: len(stored)].copy_(stored[: len(mine)])
    on_device.metadata.block_table[:, :width].copy_(other.metadata.block_table)
    on_device.metadata.seq_lens.copy_(other.metadata.seq_lens)
    on_device.metadata.shared_prefixes.copy_(other.metadata.shared_prefixes)
    graph.replay()
    expected = reference.paged_attention(other.query, other.pages, other.metadata, scale=0.25)
    torch.testing.assert_close(output.cpu(), expected, rtol=2e-2, atol=2e-2)
    on_device.metadata.seq_lens[3] = 0
    graph.replay()
    assert output[3].count_nonzero() == 0
    torch.testing.assert_close(output[4:].cpu(), expected[4:], rtol=2e-2, atol=2e-2)
