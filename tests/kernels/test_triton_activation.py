"""silu_and_mul in Triton makes what the reference makes."""

from __future__ import annotations

import pytest
import torch

from infer.kernels import reference

triton_kernels = pytest.importorskip("infer.kernels.triton")
pytestmark = pytest.mark.usefixtures("_nan_filled")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_rows", "size"), [(0, 16), (1, 1), (17, 208), (3, 1025)])
def test_triton_equals_the_reference(triton_device, num_rows, size, dtype):
    torch.manual_seed(num_rows)
    gate, up = (4 * torch.randn(1, num_rows, 2 * size)).to(dtype).chunk(2, -1)
    product = torch.cat([gate, up], -1).to(triton_device)
    output = triton_kernels.silu_and_mul(*product.chunk(2, -1))
    torch.testing.assert_close(output.cpu(), reference.silu_and_mul(gate, up))


def test_triton_bears_extreme_values(triton_device):
    gate, up = torch.tensor([[-3e38, -1000.0, -100.0, -87.5, -0.0, 0.0, 87.5, 3e38]]), torch.ones(1, 8)
    output = triton_kernels.silu_and_mul(gate.to(triton_device), up.to(triton_device))
    torch.testing.assert_close(output.cpu(), reference.silu_and_mul(gate, up), atol=1e-30, rtol=2e-6)


def test_triton_lets_a_nan_be_seen(triton_device):
    gate = torch.zeros(1, 16, device=triton_device)
    gate[0, 3] = torch.nan
    assert triton_kernels.silu_and_mul(gate, torch.ones_like(gate)).isnan().sum() == 1
