"""linear and gated_linear: the CPU's products against the reference."""

from __future__ import annotations

import pytest
import torch

from infer.kernels import cpu
from infer.kernels.cpu.panels import why_not
from infer.kernels.linear import gated_linear, linear, linear_kernels, norm_linear, output_and_mlp

CPU, REFERENCE = linear_kernels("cpu"), linear_kernels("reference")

needs_products = pytest.mark.skipif(
    why_not(torch.float32, 2) is not None, reason="this CPU has no registers for our products"
)
both_dtypes = pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(
            torch.bfloat16,
            marks=pytest.mark.skipif(why_not(torch.bfloat16, 2) is not None, reason="no bfloat16 products here"),
        ),
    ],
)
pytestmark = needs_products


def make_inputs(num_rows, depth, size, dtype):
    """Hidden, weight, bias, residual."""
    torch.manual_seed(num_rows * 1000 + size)
    shapes = ((1, num_rows, depth), (size, depth), (size,), (1, num_rows, size))
    hidden, weight, bias, residual = (torch.randn(shape).to(dtype) for shape in shapes)
    return hidden, weight * depth**-0.5, bias, residual


def assert_equal_up_to_rounding(actual, expected):
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-6}[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@both_dtypes
@pytest.mark.parametrize("num_rows", [0, 1, 5, 6, 7, 63, 300])
@pytest.mark.parametrize(("depth", "size"), [(2, 1), (48, 63), (34, 64), (576, 80), (96, 1000)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_equals_the_reference(has_bias, depth, size, num_rows, dtype):
    hidden, weight, bias, residual = make_inputs(num_rows, depth, size, dtype)
    for added in (None, residual):
        actual, expected = (
            linear(hidden, kernels.pack(weight, bias if has_bias else None), added, kernels=kernels)
            for kernels in (CPU, REFERENCE)
        )
        assert_equal_up_to_rounding(actual, expected)


@both_dtypes
@pytest.mark.parametrize("num_rows", [0, 1, 6, 63])
@pytest.mark.parametrize(("depth", "size"), [(2, 1), (48, 63), (64, 32), (576, 80)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gated_linear_equals_the_reference(has_bias, depth, size, num_rows, dtype):
    hidden, gate, gate_bias, _ = make_inputs(num_rows, depth, size, dtype)
    up, up_bias = make_inputs(num_rows + 1, depth, size, dtype)[1:3]
    biases = (gate_bias, up_bias) if has_bias else (None, None)
    actual, expected = (
        gated_linear(hidden, kernels.pack_gated(gate, up, *biases), kernels=kernels) for kernels in (CPU, REFERENCE)
    )
    assert_equal_up_to_rounding(actual, expected)


@both_dtypes
def test_result_of_a_row_does_not_depend_on_the_others(dtype):
    hidden, weight, bias, _ = make_inputs(200, 96, 200, dtype)
    packed = CPU.pack(weight, bias)
    together = linear(hidden, packed, kernels=CPU)
    for first, end in ((0, 1), (7, 8), (5, 18), (100, 200)):
        assert torch.equal(linear(hidden[:, first:end], packed, kernels=CPU), together[:, first:end])


@both_dtypes
def test_result_does_not_depend_on_the_number_of_threads(dtype):
    hidden, weight, bias, _ = make_inputs(130, 96, 200, dtype)
    packed, threads = CPU.pack(weight, bias), torch.get_num_threads()
    results = []
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            results.append(linear(hidden, packed, kernels=CPU))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@both_dtypes
def test_rows_that_lie_apart_are_taken(dtype):
    hidden, weight, _, _ = make_inputs(9, 64, 48, dtype)
    wide = torch.cat([hidden, hidden], -1)[..., 32:96]
    assert torch.equal(
        linear(wide, CPU.pack(weight, None), kernels=CPU),
        linear(wide.contiguous(), CPU.pack(weight, None), kernels=CPU),
    )


@both_dtypes
def test_nothing_is_written_behind_the_last_column(dtype):
    hidden, weight, _, _ = make_inputs(3, 16, 70, dtype)
    expected = linear(hidden, CPU.pack(weight, None), kernels=CPU)
    assert expected.isfinite().all()
    assert expected.shape == (1, 3, 70)


@both_dtypes
def test_a_nan_stays_in_its_row(dtype):
    hidden, weight, _, _ = make_inputs(8, 32, 64, dtype)
    hidden[0, 2, 5] = torch.nan
    assert linear(hidden, CPU.pack(weight, None), kernels=CPU).isnan().any(-1)[0].tolist() == [
        row == 2 for row in range(8)
    ]
    gated = gated_linear(hidden, CPU.pack_gated(weight, weight, None, None), kernels=CPU)
    assert gated.isnan().any(-1)[0].tolist() == [row == 2 for row in range(8)]


@both_dtypes
@pytest.mark.parametrize("num_rows", [0, 1, 7, 50, 63, 300])
def test_norm_and_linear_equal_the_reference(num_rows, dtype):
    hidden, weight, bias, _ = make_inputs(num_rows, 96, 200, dtype)
    norm = torch.randn(96).to(dtype)
    actual, expected = (
        norm_linear(hidden, norm, 1e-5, kernels.pack(weight, bias), kernels=kernels) for kernels in (CPU, REFERENCE)
    )
    assert_equal_up_to_rounding(actual, expected)


@both_dtypes
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 50, 63, 300])
def test_output_and_mlp_are_their_parts_one_after_the_other(num_rows, num_threads, dtype):
    attended, o_proj, _, hidden = make_inputs(num_rows, 80, 96, dtype)
    _, gate, gate_bias, _ = make_inputs(1, 96, 208, dtype)
    _, up, up_bias, _ = make_inputs(2, 96, 208, dtype)
    down = make_inputs(1, 208, 96, dtype)[1]
    norm = torch.randn(96).to(dtype)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        packed = CPU.pack(o_proj, None), norm, 1e-5, CPU.pack_gated(gate, up, gate_bias, up_bias), CPU.pack(down, None)
        actual = output_and_mlp(attended, hidden, *packed, kernels=CPU)
    finally:
        torch.set_num_threads(threads)
    total = linear(attended, packed[0], hidden, kernels=CPU)
    gated = gated_linear(cpu.rms_norm(total, norm, 1e-5), packed[3], kernels=CPU)
    assert torch.equal(actual, linear(gated, packed[4], total, kernels=CPU))
