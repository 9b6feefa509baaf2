"""rms_norm: every implementation against the reference, and the reference against the formula."""

from __future__ import annotations

import pytest
import torch

from infer.kernels import cpu, reference


def test_reference_is_the_formula():
    hidden, weight = torch.randn(3, 5, 48, dtype=torch.float64), torch.randn(48, dtype=torch.float64)
    expected = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(reference.rms_norm(hidden, weight, 1e-5), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [0, 1, 15, 16, 17, 63, 1000])
@pytest.mark.parametrize("size", [16, 48, 576])
def test_cpu_equals_the_reference(num_rows, size, dtype):
    torch.manual_seed(num_rows)
    hidden = (3 * torch.randn(1, num_rows, size)).to(dtype)
    weight = torch.randn(size).to(dtype)
    torch.testing.assert_close(cpu.rms_norm(hidden, weight, 1e-5), reference.rms_norm(hidden, weight, 1e-5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [0, 1, 17, 1000])
def test_cpu_adds_first_what_the_reference_adds(num_rows, dtype):
    torch.manual_seed(num_rows)
    hidden, residual = (3 * torch.randn(2, 1, num_rows, 576)).to(dtype)
    weight = torch.randn(576).to(dtype)
    expected = reference.add_rms_norm(hidden, residual, weight, 1e-5)
    before = hidden.clone(), residual.clone()
    total, normalised = cpu.add_rms_norm(hidden, residual, weight, 1e-5)
    assert torch.equal(total, expected[0])
    assert torch.equal(total, before[0] + before[1])
    torch.testing.assert_close(normalised, expected[1])
    assert torch.equal(hidden, before[0])
    assert torch.equal(residual, before[1])


def test_cpu_takes_a_view_whose_rows_lie_apart():
    hidden, weight = torch.randn(1, 9, 4, 32)[:, :, 1:3], torch.ones(32)
    torch.testing.assert_close(cpu.rms_norm(hidden, weight, 1e-6), reference.rms_norm(hidden, weight, 1e-6))


def test_cpu_result_of_a_row_does_not_depend_on_the_others():
    hidden, weight = torch.randn(40, 64).bfloat16(), torch.randn(64).bfloat16()
    together = cpu.rms_norm(hidden, weight, 1e-5)
    assert torch.equal(cpu.rms_norm(hidden[7:8], weight, 1e-5), together[7:8])
