"""The reference of paged attention equals the formula, evaluated one query and one head at a time in float64."""

from __future__ import annotations

import pytest
import torch
from paged_cases import PagedCase, make_paged_case, nan_filled_outputs

from infer.kernels.backend import select_backend
from infer.kernels.paged_attention import paged_attention

REFERENCE = select_backend(torch.device("cpu"), torch.float32, head_dim=16, block_size=4, preferred="reference")


def by_the_formula(
    case: PagedCase,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    metadata = case.metadata
    num_tokens, num_heads, _ = case.query.shape
    output = torch.full((num_tokens, num_heads, case.pages.value.shape[-1]), torch.nan, dtype=torch.float64)
    for seq, (key, value) in enumerate(zip(case.keys, case.values, strict=True)):
        start, end = metadata.query_start_loc[seq : seq + 2].tolist()
        for token in range(start, end):
            position = int(metadata.seq_lens[seq]) - (end - token)
            seen = slice(max(0, position - sliding_window + 1) if sliding_window else 0, position + 1)
            for head in range(num_heads):
                kv_head = head // (num_heads // key.shape[1])
                scores = key[seen, kv_head].double() @ case.query[token, head].double() * scale
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                weights = scores.exp()
                denominator = weights.sum() if sinks is None else weights.sum() + sinks[head].double().exp()
                output[token, head] = weights @ value[seen, kv_head].double() / denominator
    return output


@pytest.mark.parametrize(
    ("query_lens", "seq_lens"),
    [
        pytest.param([1, 1, 1], [1, 4, 23], id="decode"),
        pytest.param([1, 9, 16], [1, 9, 16], id="prefill"),
        pytest.param([5, 1, 8], [13, 30, 8], id="chunks"),
        pytest.param([1, 1, 7, 1, 3], [12, 5, 20, 6, 3], id="mixed"),
    ],
)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"sliding_window": 1}, id="window of 1"),
        pytest.param({"sliding_window": 5}, id="window of 5"),
        pytest.param({"sliding_window": 64}, id="window of 64"),
        pytest.param({"softcap": 2.0}, id="softcap"),
        pytest.param({"sinks": torch.tensor([-2.0, 0.0, 1.0, 3.0])}, id="sinks"),
        pytest.param({"sliding_window": 6, "softcap": 3.0, "sinks": torch.tensor([-1.0, 0.0, 2.0, 4.0])}, id="all"),
    ],
)
def test_paged_attention_equals_the_formula(query_lens, seq_lens, options) -> None:
    case = make_paged_case(query_lens, seq_lens, sliding_window=options.get("sliding_window", 0))
    with nan_filled_outputs():
        output = paged_attention(case.query, case.pages, case.metadata, scale=0.3, **options, backend=REFERENCE)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output.double(), by_the_formula(case, 0.3, **options), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_heads": 3, "num_kv_heads": 3},
        {"num_heads": 6, "num_kv_heads": 2},
        {"num_heads": 5, "num_kv_heads": 1},
        {"head_dim": 24, "value_head_dim": 7},
        {"block_size": 1},
        {"block_size": 7},
    ],
    ids=str,
)
def test_paged_attention_equals_the_formula_for_odd_sizes(sizes) -> None:
    case = make_paged_case([1, 1, 4], [3, 15, 10], **sizes)
    output = paged_attention(case.query, case.pages, case.metadata, scale=0.3, backend=REFERENCE)
    torch.testing.assert_close(output.double(), by_the_formula(case, 0.3), rtol=1e-6, atol=1e-6)


def test_paged_attention_of_float64_is_computed_in_float64() -> None:
    case = make_paged_case([1, 6], [9, 6], dtype=torch.float64)
    output = paged_attention(case.query, case.pages, case.metadata, scale=0.3, backend=REFERENCE)
    torch.testing.assert_close(output, by_the_formula(case, 0.3), rtol=1e-13, atol=1e-13)


def test_paged_attention_of_bfloat16_is_rounded_once() -> None:
    case = make_paged_case([1, 6], [40, 6], dtype=torch.bfloat16)
    output = paged_attention(case.query, case.pages, case.metadata, scale=0.3, backend=REFERENCE)
    torch.testing.assert_close(output, by_the_formula(case, 0.3).bfloat16(), rtol=2**-8, atol=0.0)


def test_paged_attention_refuses_sinks_of_another_number_of_heads() -> None:
    case = make_paged_case([1], [3])
    with pytest.raises(AssertionError, match=r"torch.Size\(\[3\]\)"):
        paged_attention(
            case.query,
            case.pages,
            case.metadata,
            scale=1.0,
            sinks=torch.zeros(3),
            backend=REFERENCE,
        )


def test_paged_attention_refuses_a_query_that_the_metadata_does_not_describe() -> None:
    case = make_paged_case([1, 2], [3, 2])
    with pytest.raises(AssertionError, match=r"torch.Size\(\[3\]\), torch.Size\(\[2, 4, 16\]\)"):
        paged_attention(case.query[:2], case.pages, case.metadata, scale=1.0, backend=REFERENCE)
