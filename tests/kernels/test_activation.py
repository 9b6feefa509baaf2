"""silu_and_mul: every implementation against the reference."""

from __future__ import annotations

import pytest
import torch

from infer.kernels import cpu, reference


def test_reference_is_the_formula():
    gate, up = torch.randn(3, 32, dtype=torch.float64), torch.randn(3, 32, dtype=torch.float64)
    torch.testing.assert_close(reference.silu_and_mul(gate, up), gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [0, 1, 17, 63, 1000])
@pytest.mark.parametrize("size", [16, 208])
def test_cpu_equals_the_reference(num_rows, size, dtype):
    torch.manual_seed(num_rows)
    gate, up = (4 * torch.randn(2, 1, num_rows, size)).to(dtype)
    torch.testing.assert_close(cpu.silu_and_mul(gate, up), reference.silu_and_mul(gate, up))


def test_cpu_takes_the_halves_of_one_product():
    gate, up = torch.randn(1, 21, 96).bfloat16().split(48, -1)
    torch.testing.assert_close(cpu.silu_and_mul(gate, up), reference.silu_and_mul(gate, up))


def test_cpu_bears_extreme_values():
    gate, up = torch.tensor([[-3e38, -1000.0, -100.0, -87.5, -0.0, 0.0, 87.5, 3e38] * 2]), torch.ones(1, 16)
    torch.testing.assert_close(cpu.silu_and_mul(gate, up), reference.silu_and_mul(gate, up), atol=1e-30, rtol=2e-6)


def test_cpu_lets_a_nan_be_seen():
    gate = torch.zeros(1, 16)
    gate[0, 3] = torch.nan
    assert cpu.silu_and_mul(gate, torch.ones(1, 16)).isnan().sum() == 1
