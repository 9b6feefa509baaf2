"""Paged attention on the CPU equals the reference, in every arithmetic the CPU has, and depends on nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from paged_cases import PagedCase, fill_with_nan, make_paged_case, nan_filled_outputs

from infer.kernels import reference
from infer.kernels.cpu import allocate_kv_cache, paged_attention, store_kv, why_not
from infer.kernels.cpu import threads as cpu_threads
from infer.kernels.cpu.arithmetic import Arithmetic, available_arithmetic, has_cpu_feature
from infer.kernels.kv_pages import LARGEST, KVPages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SINKS = torch.tensor([-2.0, 0.0, 1.0, 3.0, 4.0, -1.0, 0.5, 2.0, 1.5])


CACHE_DTYPES = pytest.mark.parametrize("cache_dtype", [None, *LARGEST], ids=str)


@pytest.fixture(params=Arithmetic, ids=lambda arithmetic: arithmetic.name.lower())
def arithmetic(request: pytest.FixtureRequest) -> Arithmetic:
    wanted: Arithmetic = request.param
    if wanted not in available_arithmetic(dtype_of(wanted)):
        pytest.skip(f"this CPU has no {wanted.value}")
    return wanted


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def dtype_of(arithmetic: Arithmetic) -> torch.dtype:
    return torch.float32 if arithmetic is Arithmetic.FLOAT32 else torch.bfloat16


def scale_of(case: PagedCase) -> float:
    return float(case.query.shape[-1] ** -0.5)


def make_case(arithmetic: Arithmetic, query_lens: list[int], seq_lens: list[int], **sizes: Any) -> PagedCase:
    sizes = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 32, "block_size": 16} | sizes
    return make_paged_case(query_lens, seq_lens, **sizes, dtype=dtype_of(arithmetic))


def in_cpu_layout(case: PagedCase) -> PagedCase:
    """The same tokens in the same slots of pages that are full of NaN otherwise."""
    sizes = (*case.pages.key.shape, case.pages.value.shape[-1])
    pages = allocate_kv_cache(*sizes, case.query.dtype, case.pages.key.dtype, torch.device("cpu"))
    fill_with_nan(pages)
    key, value, slots = case.stored
    store_kv(key, value, pages, slots)
    return replace(case, pages=pages)


def attend(case: PagedCase, arithmetic: Arithmetic, **options: object) -> torch.Tensor:
    return paged_attention(
        case.query,
        case.pages,
        case.metadata,
        scale=scale_of(case),
        arithmetic=arithmetic,
        **options,
    )


def assert_equals_the_reference(case: PagedCase, arithmetic: Arithmetic, **options: object) -> None:
    expected = reference.paged_attention(case.query, case.pages, case.metadata, scale=scale_of(case), **options)
    with nan_filled_outputs():
        output = attend(in_cpu_layout(case), arithmetic, **options)
    assert output.dtype == case.query.dtype
    # Weights of the products in bfloat16 are rounded to it, the others only the output.
    tolerance = {
        Arithmetic.FLOAT32: {"rtol": 1e-6, "atol": 1e-6},
        Arithmetic.BFLOAT16_WIDENED: {"rtol": 2**-7, "atol": 1e-5},
        Arithmetic.BFLOAT16_DOT: {"rtol": 2**-7, "atol": 2**-7},
        Arithmetic.BFLOAT16_TILES: {"rtol": 2**-7, "atol": 2**-7},
    }[arithmetic]
    torch.testing.assert_close(output, expected, **tolerance)


@pytest.mark.parametrize(
    ("query_lens", "seq_lens"),
    [
        pytest.param([1] * 8, [1, 15, 16, 17, 63, 256, 257, 1000], id="decode"),
        pytest.param([1, 15, 17, 63], [1, 15, 17, 63], id="prefill"),
        pytest.param([5, 1, 100, 30], [300, 40, 130, 30], id="chunks"),
        pytest.param([1, 1, 1, 70, 2], [12, 300, 5, 270, 2], id="mixed"),
    ],
)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"sliding_window": 1}, id="window of 1"),
        pytest.param({"sliding_window": 21}, id="window of 21"),
        pytest.param({"sliding_window": 260}, id="window of 260"),
        pytest.param({"softcap": 2.0}, id="softcap"),
        pytest.param({"sinks": SINKS}, id="sinks"),
        pytest.param({"sliding_window": 40, "softcap": 3.0, "sinks": SINKS}, id="all"),
    ],
)
def test_paged_attention_equals_the_reference(arithmetic, query_lens, seq_lens, options) -> None:
    case = make_case(arithmetic, query_lens, seq_lens, sliding_window=options.get("sliding_window", 0))
    assert_equals_the_reference(case, arithmetic, **options)


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_heads": 2, "num_kv_heads": 2},
        {"num_heads": 4, "num_kv_heads": 2},
        {"num_heads": 5, "num_kv_heads": 1},
        {"num_heads": 7, "num_kv_heads": 1},
        {"num_heads": 16, "num_kv_heads": 1},
        {"num_heads": 70, "num_kv_heads": 1},
        {"head_dim": 16},
        {"head_dim": 48, "value_head_dim": 80},
        {"head_dim": 64, "value_head_dim": 16},
        {"head_dim": 256, "value_head_dim": 256},
        {"block_size": 32},
        {"block_size": 80},
    ],
    ids=str,
)
def test_paged_attention_equals_the_reference_for_all_sizes(arithmetic, sizes) -> None:
    assert_equals_the_reference(make_case(arithmetic, [1, 1, 35], [17, 270, 60], **sizes), arithmetic)


@pytest.mark.parametrize("cache_dtype", LARGEST, ids=str)
@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "sizes", "options"),
    [
        pytest.param([1] * 8, [1, 15, 16, 17, 63, 256, 257, 1000], {}, {}, id="decode"),
        pytest.param([5, 1, 100, 30], [300, 40, 130, 30], {}, {}, id="chunks"),
        pytest.param([1, 1, 35], [17, 270, 60], {"head_dim": 48, "value_head_dim": 80}, {}, id="values are longer"),
        pytest.param([1, 1, 35], [17, 270, 60], {"head_dim": 80, "block_size": 80}, {}, id="large blocks"),
        pytest.param([1, 90], [600, 300], {}, {"sliding_window": 260, "softcap": 3.0, "sinks": SINKS}, id="options"),
    ],
)
def test_paged_attention_of_quantized_pages_equals_the_reference(
    arithmetic, cache_dtype, query_lens, seq_lens, sizes, options
) -> None:
    sizes = {**sizes, "sliding_window": options.get("sliding_window", 0), "cache_dtype": cache_dtype}
    assert_equals_the_reference(make_case(arithmetic, query_lens, seq_lens, **sizes), arithmetic, **options)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(
    ("query_lens", "seq_lens"),
    [
        pytest.param([1], [2000], id="chunks of one sequence"),
        pytest.param([1, 1, 1], [90, 700, 33], id="chunks of several"),
        pytest.param([1] * 12, [40] * 12, id="spans"),
        pytest.param([1, 300], [20, 500], id="spans at a head"),
    ],
)
def test_paged_attention_equals_the_reference_however_threads_share_it(arithmetic, query_lens, seq_lens) -> None:
    assert_equals_the_reference(make_case(arithmetic, query_lens, seq_lens), arithmetic)


@pytest.mark.usefixtures("_two_threads")
def test_paged_attention_runs_on_threads_of_its_own_where_torch_does_not_lend_its(monkeypatch) -> None:
    monkeypatch.setattr(cpu_threads, "_openmp_parallel", lambda: None)
    assert_equals_the_reference(make_case(Arithmetic.FLOAT32, [1, 40], [500, 300]), Arithmetic.FLOAT32)


@pytest.mark.usefixtures("_two_threads")
@CACHE_DTYPES
def test_a_sequence_has_the_same_result_alone_and_among_others(arithmetic, cache_dtype) -> None:
    query_lens, seq_lens = [1, 1, 1, 1, 90, 1, 17], [300, 5, 1000, 16, 400, 1, 17]
    case = in_cpu_layout(make_case(arithmetic, query_lens, seq_lens, cache_dtype=cache_dtype))
    together = attend(case, arithmetic, sinks=SINKS)
    for sequence in range(len(seq_lens)):
        start, end = case.metadata.query_start_loc[sequence : sequence + 2].tolist()
        assert torch.equal(attend(only(case, sequence, start, end), arithmetic, sinks=SINKS), together[start:end])


@CACHE_DTYPES
def test_a_sequence_has_the_same_result_however_it_is_cut_into_steps(arithmetic, cache_dtype) -> None:
    case = in_cpu_layout(make_case(arithmetic, [600], [600], cache_dtype=cache_dtype))
    whole = attend(case, arithmetic, sliding_window=350)
    for start, end in [(0, 1), (0, 100), (100, 101), (101, 370), (370, 599), (599, 600)]:
        assert torch.equal(attend(only(case, 0, start, end), arithmetic, sliding_window=350), whole[start:end])


SHARED = {
    "all": ([1] * 30, [600 + 3 * index for index in range(30)], ((0, 30, 0, 35),)),
    "a prefix that ends in a chunk": ([1] * 3, [530, 531, 700], ((0, 3, 0, 33),)),
    "a prefix too short for a chunk": ([1] * 3, [300, 290, 257], ((0, 3, 0, 15),)),
    "some": ([1] * 6, [300, 700, 280, 5, 600, 270], ((1, 3, 0, 17), (4, 6, 0, 16))),
    "nested": (
        [1] * 9,
        [1400, 1101, 800, 900, 820, 700, 640, 520, 300],
        ((0, 9, 0, 18), (0, 6, 18, 40), (6, 8, 18, 32), (0, 2, 40, 65), (2, 5, 40, 49)),
    ),
    "with chunks": ([1, 1, 1, 3, 2, 100], [300, 301, 302, 520, 530, 400], ((0, 3, 0, 18), (3, 5, 0, 32))),
    "with long chunks": ([1, 1, 40, 60], [300, 301, 300, 320], ((0, 2, 0, 18), (2, 4, 0, 16))),
}


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("shape", SHARED)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"softcap": 2.0, "sinks": SINKS}, id="softcap and sinks"),
        pytest.param({"sliding_window": 200}, id="a window within the prefix"),
        pytest.param({"sliding_window": 2000}, id="a window beyond all"),
    ],
)
def test_a_shared_prefix_changes_no_bit(arithmetic, shape, options) -> None:
    query_lens, seq_lens, shared_prefixes = SHARED[shape]
    made = make_case(arithmetic, query_lens, seq_lens, shared_prefixes=shared_prefixes)
    assert_equals_the_reference(made, arithmetic, **options)
    case = in_cpu_layout(made)
    with nan_filled_outputs():
        together = attend(case, arithmetic, **options)
    alone = replace(case, metadata=replace(case.metadata, shared_prefixes=None))
    assert torch.equal(together, attend(alone, arithmetic, **options))


@pytest.mark.parametrize("cache_dtype", LARGEST, ids=str)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_shared_prefix_of_quantized_pages_changes_no_bit(arithmetic, cache_dtype, num_threads) -> None:
    query_lens, seq_lens, shared_prefixes = SHARED["nested"]
    sizes = {"cache_dtype": cache_dtype, "block_size": 32, "head_dim": 64, "value_head_dim": 32}
    halved = tuple((first, end, start // 2, stop // 2) for first, end, start, stop in shared_prefixes)
    case = in_cpu_layout(make_case(arithmetic, query_lens, seq_lens, shared_prefixes=halved, **sizes))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    together = attend(case, arithmetic)
    torch.set_num_threads(before)
    alone = replace(case, metadata=replace(case.metadata, shared_prefixes=None))
    assert torch.equal(together, attend(alone, arithmetic))


def test_keys_of_a_shared_prefix_are_read_once_for_all(arithmetic) -> None:
    query_lens, seq_lens, shared_prefixes = SHARED["all"]
    made = make_case(arithmetic, query_lens, seq_lens, shared_prefixes=shared_prefixes)
    expected = attend(in_cpu_layout(made), arithmetic)
    # Whole chunks of the prefix are found in the first sequence's table, and in no other's.
    made.metadata.block_table[1:, :32] = 0
    assert torch.equal(attend(in_cpu_layout(made), arithmetic), expected)


def only(case: PagedCase, sequence: int, start: int, end: int) -> PagedCase:
    """A step of the queries `start` to `end - 1` of the batch, which are of this sequence."""
    metadata = case.metadata
    seq_len = int(metadata.seq_lens[sequence]) - (int(metadata.query_start_loc[sequence + 1]) - end)
    step = replace(
        metadata,
        slot_mapping=metadata.slot_mapping[start:end],
        block_table=metadata.block_table[sequence : sequence + 1],
        query_start_loc=torch.tensor([0, end - start], dtype=torch.int32),
        seq_lens=torch.tensor([seq_len], dtype=torch.int32),
        max_query_len=end - start,
        max_seq_len=seq_len,
        num_decodes=int(end - start == 1),
    )
    return replace(case, query=case.query[start:end], metadata=step)


def test_float32_is_exact_to_a_few_units_in_the_last_place() -> None:
    case = make_case(Arithmetic.FLOAT32, [1, 50], [1000, 50], head_dim=64)
    pages = KVPages(case.pages.key.double(), case.pages.value.double())
    expected = reference.paged_attention(case.query.double(), pages, case.metadata, scale=scale_of(case), softcap=30.0)
    output = attend(in_cpu_layout(case), Arithmetic.FLOAT32, softcap=30.0)
    # Errors are in proportion to the values that were summed, not to what is left of the sum.
    assert (output - expected).abs().max() < 1e-6


@pytest.mark.parametrize("cache_dtype", LARGEST, ids=str)
@pytest.mark.parametrize("is_value", [False, True])
def test_a_nan_in_a_quantized_head_shows_and_stays_in_its_sequence(arithmetic, cache_dtype, is_value) -> None:
    case = make_case(arithmetic, [1, 1, 1], [40, 40, 40], cache_dtype=cache_dtype)
    case.stored[is_value][50, 2, 5] = torch.nan
    output = attend(in_cpu_layout(case), arithmetic)
    assert output[1, 6:].isnan().all()
    assert output[1, :6].isfinite().all()
    assert output[[0, 2]].isfinite().all()


def test_a_nan_stays_in_its_sequence(arithmetic) -> None:
    case = make_case(arithmetic, [1, 1, 20], [40, 40, 40])
    broken = replace(case, query=case.query.clone())
    broken.query[1, 4] = torch.nan
    output = attend(in_cpu_layout(broken), arithmetic)
    assert output[1, 4].isnan().all()
    output[1, 4] = 0.0
    assert not output.isnan().any()


def test_scores_too_low_for_an_exponential_weigh_nothing(arithmetic) -> None:
    case = make_case(arithmetic, [1], [300])
    peaked = replace(case, query=case.query * 1000.0)
    assert_equals_the_reference(peaked, arithmetic)


def test_paged_attention_of_no_tokens_is_empty(arithmetic) -> None:
    case = in_cpu_layout(make_case(arithmetic, [1], [3]))
    none = torch.zeros(0, dtype=torch.int32)
    metadata = replace(
        case.metadata,
        slot_mapping=none.long(),
        block_table=none.view(0, 1),
        query_start_loc=torch.zeros(1, dtype=torch.int32),
        seq_lens=none,
        max_query_len=0,
        max_seq_len=0,
        num_decodes=0,
    )
    output = attend(replace(case, query=case.query[:0], metadata=metadata), arithmetic)
    assert output.shape == (0, 9, 32)


def test_query_may_be_a_slice_of_a_wider_projection(arithmetic) -> None:
    case = in_cpu_layout(make_case(arithmetic, [1, 20], [30, 20]))
    wider = torch.cat([case.query, case.query], dim=1)[:, :9]
    assert not wider.is_contiguous()
    assert torch.equal(attend(replace(case, query=wider), arithmetic), attend(case, arithmetic))


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ((torch.float32, torch.float32, 64, 64, 16), None),
        ((torch.bfloat16, torch.bfloat16, 80, 48, 32), None),
        ((torch.float32, torch.int8, 64, 64, 16), None),
        ((torch.bfloat16, torch.float8_e4m3fn, 64, 64, 16), None),
        ((torch.float16, torch.float16, 64, 64, 16), "it computes in float32 and bfloat16 only: torch.float16"),
        (
            (torch.float32, torch.bfloat16, 64, 64, 16),
            "its caches are of torch.float32, torch.int8 and torch.float8_e4m3fn: torch.bfloat16",
        ),
        ((torch.float32, torch.float32, 24, 64, 16), "the head dimension must be a multiple of 16: 24"),
        ((torch.float32, torch.float32, 64, 24, 16), "the head dimension of values must be a multiple of 16: 24"),
        ((torch.float32, torch.float32, 64, 64, 8), "the block size must be a multiple of 16: 8"),
    ],
    ids=str,
)
def test_why_not_says_what_cannot_be_served(tensors, reason) -> None:
    assert why_not(*tensors) == reason


@pytest.mark.slow
@pytest.mark.skipif(not has_cpu_feature("avx512f"), reason="the other tests have done it")
def test_paged_attention_runs_on_cpus_without_avx512() -> None:
    features = "avx avx2 fma bmi bmi2 f16c sse sse2 sse3 ssse3 sse4.1 sse4.2 popcnt cx16 lzcnt movbe"
    haswell = {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in features.split()),
    }
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-k", "equals_the_reference", __file__]
    tests = subprocess.run(command, env=os.environ | haswell, capture_output=True, text=True, check=False)
    assert tests.returncode == 0, tests.stdout
