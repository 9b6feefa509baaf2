"""argmax: every implementation against torch."""

from __future__ import annotations

import pytest
import torch

from infer.kernels.argmax import argmax
from infer.kernels.reference.argmax import argmax as reference

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
both = pytest.mark.parametrize("search", [argmax, reference])


@both
@both_dtypes
@pytest.mark.parametrize("num_rows", [0, 1, 3, 40])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 32, 33, 47, 48, 63, 512, 1000, 4096])
def test_argmax_is_the_first_largest_element(size, num_rows, dtype, search):
    torch.manual_seed(size)
    # Of few values, so that the largest is there more than once.
    rows = torch.randint(-9, 9, (num_rows, size)).to(dtype)
    maxima, indices = search(rows)
    assert torch.equal(maxima, rows.amax(-1).float())
    assert torch.equal(indices, (rows == rows.amax(-1, keepdim=True)).int().argmax(-1))
    assert maxima.dtype == torch.float32


@both
@both_dtypes
@pytest.mark.parametrize("place", [0, 17, 40, 46, 47, 48, 63, 98])
def test_argmax_finds_an_element_wherever_it_stands(place, dtype, search):
    rows = torch.full((1, 99), -3.0, dtype=dtype)
    rows[0, place] = -2.5
    assert [each.tolist() for each in search(rows)] == [[-2.5], [place]]


@both
@both_dtypes
@pytest.mark.parametrize("place", [0, 17, 40, 46, 47, 48, 63, 98])
def test_argmax_lets_a_nan_be_seen_in_its_row_only(place, dtype, search):
    rows = torch.zeros(2, 99, dtype=dtype)
    rows[1, place] = torch.nan
    assert search(rows)[0].isnan().tolist() == [False, True]


@both
@both_dtypes
def test_argmax_takes_zeros_of_both_signs_for_equal_and_bears_infinities(dtype, search):
    rows = torch.full((3, 80), -torch.inf, dtype=dtype)
    rows[0, 60:] = torch.tensor([-0.0, 0.0] * 10)
    rows[1, 70] = torch.inf
    maxima, indices = search(rows)
    assert maxima.tolist() == [0.0, torch.inf, -torch.inf]
    assert indices.tolist() == [60, 70, 0]


@both
def test_argmax_takes_rows_that_lie_apart(search):
    rows = torch.randn(6, 200)[::2, 10:110]
    assert torch.equal(search(rows)[1], rows.argmax(-1))
