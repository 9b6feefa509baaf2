"""Linear layers in int8: every implementation against the reference, bit for bit, and the reference against float."""

from __future__ import annotations

import pytest
import torch

from infer.kernels import cpu
from infer.kernels.backend import select_backend
from infer.kernels.cpu.dot_product import DotProduct, available_dot_products
from infer.kernels.quant_linear import pack_weight, quant_linear, quantize_tokens, quantize_weight, rotation_of
from infer.kernels.quantized_outputs import quantized_add_rms_norm, quantized_rms_norm, quantized_silu_and_mul
from infer.kernels.reference.rotate import rotate

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def make_backend(name):
    return select_backend(torch.device("cpu"), torch.float32, head_dim=32, block_size=16, preferred=name)


REFERENCE, CPU = make_backend("reference"), make_backend("cpu")


def make_layer(num_rows, in_features, out_features, dtype, rotation=1):
    """Hidden states, weight, bias, residual."""
    torch.manual_seed(num_rows)
    hidden = (3 * torch.randn(1, num_rows, in_features)).to(dtype)
    weight = quantize_weight(torch.randn(out_features, in_features), rotation=rotation)
    return hidden, weight, torch.randn(out_features).to(dtype), torch.randn(1, num_rows, out_features).to(dtype)


def run(backend, hidden, weight, bias=None, residual=None):
    tokens = quantize_tokens(hidden, torch.int8, weight.rotation, backend=backend)
    packed = pack_weight(weight, backend=backend)
    return quant_linear(tokens, packed, bias, residual, dtype=hidden.dtype, backend=backend)


def signed(tokens):
    """The elements of the CPU's tokens as the reference has them."""
    return (tokens.elements.to(torch.int16) - 128).to(torch.int8)[..., : tokens.size]


@pytest.mark.parametrize("quantized_dtype", [torch.int8, torch.float8_e4m3fn])
def test_reference_is_close_to_the_layer_itself(quantized_dtype):
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(2, 5, 96), torch.randn(40, 96), torch.randn(40)
    tokens = quantize_tokens(hidden, quantized_dtype, backend=REFERENCE)
    output = quant_linear(
        tokens, quantize_weight(weight, quantized_dtype), bias, dtype=torch.float32, backend=REFERENCE
    )
    expected = torch.nn.functional.linear(hidden, weight, bias)
    assert (output - expected).abs().mean() < (0.1 if quantized_dtype is torch.int8 else 0.4)
    assert not torch.equal(output, expected)


def test_residual_is_added_to_what_is_rounded():
    hidden, weight, bias, residual = make_layer(5, 64, 48, torch.bfloat16)
    plain = run(REFERENCE, hidden, weight, bias)
    assert torch.equal(run(REFERENCE, hidden, weight, bias, residual), plain + residual)


@pytest.mark.parametrize("size", [1, 16, 32, 64])
def test_rotation_is_a_hadamard_matrix(size):
    hidden = torch.randn(3, 2 * size, dtype=torch.float32)
    matrix = rotate(torch.eye(size), size)
    assert torch.equal(matrix @ matrix.T, size * torch.eye(size))
    assert torch.equal(matrix.abs(), torch.ones(size, size))
    expected = (hidden.view(3, 2, size) @ matrix).flatten(1)
    torch.testing.assert_close(rotate(hidden, size), expected, atol=1e-5, rtol=1e-5)


def test_rotation_spares_tokens_with_one_large_channel():
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 50, 128), torch.randn(32, 128)
    hidden[..., 7] *= 100
    expected = hidden @ weight.T
    errors = [
        (run(REFERENCE, hidden, quantize_weight(weight, rotation=rotation)) - expected).square().mean()
        for rotation in (1, 64)
    ]
    assert errors[1] < errors[0] / 4


@pytest.mark.parametrize(("in_features", "rotation"), [(576, 64), (96, 32), (48, 16), (40, 1), (17, 1)])
def test_blocks_are_the_largest_that_divide_the_channels(in_features, rotation):
    assert rotation_of(in_features) == rotation


@DTYPES
@pytest.mark.parametrize("num_rows", [0, 1, 17, 63])
@pytest.mark.parametrize(("size", "rotation"), [(7, 1), (24, 1), (48, 1), (48, 16), (96, 32), (192, 64)])
def test_cpu_makes_the_tokens_of_the_reference(size, rotation, num_rows, dtype):
    hidden = make_layer(num_rows, size, 16, dtype)[0]
    tokens, expected = (quantize_tokens(hidden, torch.int8, rotation, backend=each) for each in (CPU, REFERENCE))
    assert tokens.shape == expected.shape == hidden.shape
    assert torch.equal(signed(tokens), expected.elements)
    assert torch.equal(tokens.scales, expected.scales)


@DTYPES
@pytest.mark.parametrize("rotation", [1, 16, 32, 64])
@pytest.mark.parametrize("num_rows", [0, 1, 17, 63])
def test_cpu_makes_tokens_of_norms_and_activation_as_of_their_outputs(num_rows, rotation, dtype):
    hidden, _, weight, _ = make_layer(num_rows, 192, 192, dtype)
    residual = hidden.flip(-1)
    total, added = quantized_add_rms_norm(hidden, residual, weight, 1e-5, torch.int8, rotation, backend=CPU)
    assert torch.equal(total, hidden + residual)
    gate, up = torch.cat([hidden, residual], -1).chunk(2, -1)
    pairs = [
        (
            quantized_rms_norm(hidden, weight, 1e-5, torch.int8, rotation, backend=CPU),
            cpu.rms_norm(hidden, weight, 1e-5),
        ),
        (added, cpu.rms_norm(total, weight, 1e-5)),
        (quantized_silu_and_mul(gate, up, torch.int8, rotation, backend=CPU), cpu.silu_and_mul(gate, up)),
    ]
    for tokens, plain in pairs:
        expected = quantize_tokens(plain, torch.int8, rotation, backend=REFERENCE)
        assert torch.equal(signed(tokens), expected.elements)
        assert torch.equal(tokens.scales, expected.scales)


@pytest.mark.parametrize("rotation", [1, 64])
def test_reference_makes_tokens_of_norms_and_activation_as_of_their_outputs(rotation):
    hidden, _, weight, _ = make_layer(9, 64, 64, torch.float32)
    arguments = (torch.int8, rotation)
    total, added = quantized_add_rms_norm(hidden, hidden, weight, 1e-5, *arguments, backend=REFERENCE)
    assert torch.equal(total, hidden + hidden)
    pairs = [
        (quantized_rms_norm(hidden, weight, 1e-5, *arguments, backend=REFERENCE), hidden),
        (added, total),
    ]
    for tokens, before in pairs:
        plain = REFERENCE.rms_norm(before, weight, 1e-5)
        assert torch.equal(tokens.elements, quantize_tokens(plain, *arguments, backend=REFERENCE).elements)
    activated = quantized_silu_and_mul(hidden, hidden, *arguments, backend=REFERENCE)
    plain = REFERENCE.silu_and_mul(hidden, hidden)
    assert torch.equal(activated.elements, quantize_tokens(plain, *arguments, backend=REFERENCE).elements)


@DTYPES
@pytest.mark.parametrize("dot_product", DotProduct)
@pytest.mark.parametrize("num_rows", [0, 1, 5, 6, 7, 63, 200])
@pytest.mark.parametrize(("in_features", "out_features"), [(64, 64), (7, 5), (40, 130), (576, 192)])
def test_cpu_equals_the_reference_bit_for_bit(in_features, out_features, num_rows, dot_product, dtype):
    if dot_product not in available_dot_products():
        pytest.skip("this CPU has no such instruction")
    hidden, weight, bias, residual = make_layer(num_rows, in_features, out_features, dtype)
    tokens, packed = quantize_tokens(hidden, torch.int8, backend=CPU), pack_weight(weight, backend=CPU)
    for rest in ((None, None), (bias, None), (None, residual), (bias, residual)):
        output = cpu.quant_linear(tokens, packed, *rest, dtype, dot_product)
        expected = run(REFERENCE, hidden, weight, *rest)
        assert output.shape == expected.shape
        assert torch.equal(output, expected)


def test_cpu_adds_up_the_largest_elements_without_saturating():
    in_features = 4096
    weight = quantize_weight(torch.ones(64, in_features) * torch.tensor([1.0, -1.0]).repeat(32)[:, None])
    for sign in (1.0, -1.0):
        hidden = sign * torch.ones(1, 3, in_features)
        tokens, packed = quantize_tokens(hidden, torch.int8, backend=CPU), pack_weight(weight, backend=CPU)
        for dot_product in available_dot_products():
            output = cpu.quant_linear(tokens, packed, None, None, torch.float32, dot_product)
            assert torch.equal(output, run(REFERENCE, hidden, weight))


def test_cpu_result_of_a_row_does_not_depend_on_the_others():
    hidden, weight, bias, residual = make_layer(200, 64, 320, torch.bfloat16, rotation=64)
    together = run(CPU, hidden, weight, bias, residual)
    for row in (0, 7, 199):
        alone = run(CPU, hidden[:, row : row + 1], weight, bias, residual[:, row : row + 1])
        assert torch.equal(alone, together[:, row : row + 1])


@pytest.mark.parametrize("rotation", [1, 64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_cpu_lets_a_row_that_is_no_number_be_seen_and_no_other(value, rotation):
    hidden, weight, *_ = make_layer(8, 64, 32, torch.float32, rotation)
    clean = run(CPU, hidden, weight)
    hidden[0, 3, 5] = value
    output = run(CPU, hidden, weight)
    assert not output[0, 3].isfinite().any()
    others = [row for row in range(8) if row != 3]
    assert torch.equal(output[0, others], clean[0, others])


def test_tokens_of_zeros_give_zeros():
    _, weight, *_ = make_layer(1, 64, 32, torch.float32)
    assert torch.equal(run(CPU, torch.zeros(1, 2, 64), weight), torch.zeros(1, 2, 32))
