"""sample_tokens in Triton takes the tokens that the reference takes."""

from __future__ import annotations

import math

import pytest
import torch

from infer.kernels import reference
from infer.kernels.sampling import DrawParameters

triton_kernels = pytest.importorskip("infer.kernels.triton")
pytestmark = pytest.mark.usefixtures("_nan_filled")

CUTS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"top_k": 1.0},
    {"top_k": 7.0, "temperature": 2.0},
    {"top_k": 1e6},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"min_p": 0.01, "top_k": 40.0, "top_p": 0.5, "temperature": 1.5},
    {"temperature": 0.0, "top_k": 3.0},
]


def make_parameters(rows, uniforms):
    defaults = {"temperature": 1.0, "min_p": 0.0, "top_k": 0.0, "top_p": 1.0}
    columns = [[(defaults | row)[name] for row in rows] for name in defaults]
    return torch.tensor([*columns, uniforms], dtype=torch.float64)


def sample(device, logits, values):
    parameters = DrawParameters(
        values.to(device), True, bool(((values[1] > 0) | (values[2] > 0) | (values[3] < 1)).any())
    )
    return triton_kernels.sample_tokens(logits.to(device), parameters).tolist()


def sample_reference(logits, values):
    return reference.sample_tokens(logits.clone(), DrawParameters(values, True, True)).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 2, 63, 1000, 4096, 9001])
def test_triton_takes_the_tokens_of_the_reference(triton_device, vocab_size, dtype):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (3 * torch.randn(len(CUTS), vocab_size, generator=generator)).to(dtype)
    uniforms = torch.rand(len(CUTS), generator=generator, dtype=torch.float64).tolist()
    values = make_parameters(CUTS, uniforms)
    assert sample(triton_device, logits, values) == sample_reference(logits, values)


def test_triton_draws_at_either_end_and_never_what_has_no_weight(triton_device):
    logits = torch.full((6, 5000), -math.inf)
    logits[:, 3], logits[:, 4500] = 1.0, 1.0
    values = make_parameters([{}, {}, {}, {"top_p": 0.9}, {"top_p": 0.9}, {"min_p": 0.5}], [0, 0.49, 1 - 2**-53] * 2)
    assert sample(triton_device, logits, values) == [3, 3, 4500, 3, 3, 4500]


def test_triton_keeps_all_that_tie_with_the_last_one_kept(triton_device):
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, 0.0]]).expand(40, -1).contiguous()
    values = make_parameters([{"top_k": 2.0, "temperature": 50.0}] * 40, [index / 40 for index in range(40)])
    assert set(sample(triton_device, logits, values)) == {1, 2, 3, 4}
    assert sample(triton_device, logits, values) == sample_reference(logits, values)


def test_triton_takes_the_first_of_equals_across_splits(triton_device):
    logits = torch.zeros(3, 9000)
    logits[0, [4096, 8200]] = 5.0
    logits[1, [4095, 4096]] = 5.0
    values = make_parameters([{"temperature": 0.0}] * 3, [0.5] * 3)
    assert sample(triton_device, logits, values) == [4096, 4095, 0]


@pytest.mark.parametrize("cut", [{"temperature": 0.0}, {}, {"top_p": 0.5}], ids=str)
def test_triton_has_no_token_for_what_is_no_distribution(triton_device, cut):
    logits = torch.randn(4, 5000)
    logits[0, 17], logits[1, 4999], logits[2] = math.nan, math.inf, -math.inf
    tokens = sample(triton_device, logits, make_parameters([cut] * 4, [0.5] * 4))
    assert tokens[:3] == [-1, -1, -1]
    assert tokens[3] >= 0


def test_triton_token_of_a_row_does_not_depend_on_the_others(triton_device):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(CUTS), 700, generator=generator)
    values = make_parameters(CUTS, torch.rand(len(CUTS), generator=generator).tolist())
    alone = [sample(triton_device, logits[i : i + 1], values[:, i : i + 1].contiguous())[0] for i in range(len(CUTS))]
    assert sample(triton_device, logits, values) == alone


def test_triton_takes_rows_that_lie_apart(triton_device):
    logits = torch.randn(4, 900)[::2]
    values = make_parameters([{}, {"temperature": 0.0}], [0.3, 0.3])
    on_device = torch.empty(4, 900, device=triton_device)[::2]
    on_device.copy_(logits)
    parameters = DrawParameters(values.to(triton_device), True, False)
    assert triton_kernels.sample_tokens(on_device, parameters).tolist() == sample_reference(logits, values)
