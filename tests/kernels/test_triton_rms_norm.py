"""rms_norm and add_rms_norm in Triton make what the reference makes."""

from __future__ import annotations

import pytest
import torch

from infer.kernels import reference

triton_kernels = pytest.importorskip("infer.kernels.triton")
pytestmark = pytest.mark.usefixtures("_nan_filled")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_rows", "size"), [(0, 32), (1, 1), (5, 20), (63, 64), (7, 576), (2, 1000), (3, 4097)])
def test_triton_equals_the_reference(triton_device, num_rows, size, dtype):
    torch.manual_seed(num_rows)
    hidden, weight = (3 * torch.randn(1, num_rows, size)).to(dtype), torch.randn(size).to(dtype)
    output = triton_kernels.rms_norm(hidden.to(triton_device), weight.to(triton_device), 1e-5)
    torch.testing.assert_close(output.cpu(), reference.rms_norm(hidden, weight, 1e-5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_rows", "size"), [(0, 32), (1, 1), (17, 80), (3, 1000)])
def test_triton_adds_first_what_the_reference_adds(triton_device, num_rows, size, dtype):
    torch.manual_seed(num_rows)
    hidden, residual = (3 * torch.randn(2, 1, num_rows, size)).to(dtype)
    weight = torch.randn(size).to(dtype)
    before = hidden.clone(), residual.clone()
    tensors = [tensor.to(triton_device) for tensor in (hidden, residual, weight)]
    total, output = triton_kernels.add_rms_norm(*tensors, 1e-5)
    expected = reference.add_rms_norm(hidden, residual, weight, 1e-5)
    assert torch.equal(total.cpu(), expected[0])
    torch.testing.assert_close(output.cpu(), expected[1])
    assert all(torch.equal(left.cpu(), right) for left, right in zip(tensors, before, strict=False))


def test_triton_takes_a_view_whose_rows_lie_apart(triton_device):
    hidden, weight = torch.randn(9, 4, 32)[:, 1:3], torch.randn(32)
    output = triton_kernels.rms_norm(hidden.to(triton_device), weight.to(triton_device), 1e-6)
    torch.testing.assert_close(output.cpu(), reference.rms_norm(hidden, weight, 1e-6))


def test_triton_result_of_a_row_does_not_depend_on_the_others(triton_device):
    hidden, weight = torch.randn(40, 64).to(triton_device), torch.randn(64).to(triton_device)
    together = triton_kernels.rms_norm(hidden, weight, 1e-5)
    assert torch.equal(triton_kernels.rms_norm(hidden[7:8], weight, 1e-5), together[7:8])
