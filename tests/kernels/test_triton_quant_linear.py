"""quant_linear in Triton, and what hands it quantised tokens, make what the reference makes."""

from __future__ import annotations

import pytest
import torch

from infer.kernels import reference
from infer.kernels.quant_linear import quantize_weight
from infer.kernels.quantized_operands import LARGEST

triton_kernels = pytest.importorskip("infer.kernels.triton")
pytestmark = pytest.mark.usefixtures("_nan_filled")


def on(device, operands):
    return type(operands)(
        *(
            value.to(device) if isinstance(value, torch.Tensor) else value
            for value in (getattr(operands, name) for name in operands.__dataclass_fields__)
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("has_rest", [False, True], ids=["product", "bias and residual"])
@pytest.mark.parametrize(
    ("num_tokens", "size", "num_channels"),
    [(0, 32, 16), (1, 16, 1), (16, 256, 64), (17, 300, 70), (40, 128, 130), (130, 96, 257)],
)
def test_triton_int8_product_is_the_reference_to_the_bit(
    triton_device, num_tokens, size, num_channels, has_rest, dtype
):
    torch.manual_seed(num_tokens)
    kernels = triton_kernels.QUANT_KERNELS
    weight = quantize_weight(torch.randn(num_channels, size))
    tokens = reference.QUANT_KERNELS.quantize_tokens(torch.randn(1, num_tokens, size).to(dtype), torch.int8)
    bias = torch.randn(num_channels).to(dtype) if has_rest else None
    residual = torch.randn(1, num_tokens, num_channels).to(dtype) if has_rest else None
    expected = reference.QUANT_KERNELS.quant_linear(tokens, weight, bias, residual, dtype)
    packed = kernels.pack_weight(on(triton_device, weight))
    rest = [None if each is None else each.to(triton_device) for each in (bias, residual)]
    output = kernels.quant_linear(on(triton_device, tokens), packed, *rest, dtype)
    assert torch.equal(output.cpu(), expected)


def test_triton_int8_product_holds_the_largest_sums(triton_device):
    kernels = triton_kernels.QUANT_KERNELS
    weight = quantize_weight(-torch.ones(3, 5000))
    tokens = reference.QUANT_KERNELS.quantize_tokens(torch.ones(2, 5000), torch.int8)
    output = kernels.quant_linear(on(triton_device, tokens), on(triton_device, weight), None, None, torch.float32)
    assert torch.equal(output.cpu(), reference.QUANT_KERNELS.quant_linear(tokens, weight, None, None, torch.float32))


@pytest.mark.parametrize("target", LARGEST, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_tokens", "size"), [(0, 16), (1, 1), (5, 48), (33, 300), (3, 4100)])
def test_triton_quantises_tokens_as_the_reference_to_the_bit(triton_device, num_tokens, size, dtype, target):
    torch.manual_seed(num_tokens)
    hidden = (3 * torch.randn(1, num_tokens, 2 * size)).to(dtype)[..., :size]
    hidden[:, ::3] = 0.0
    expected = reference.QUANT_KERNELS.quantize_tokens(hidden, target)
    whole = torch.empty(1, num_tokens, 2 * size, dtype=dtype, device=triton_device)
    whole[..., :size] = hidden.to(triton_device)
    tokens = triton_kernels.QUANT_KERNELS.quantize_tokens(whole[..., :size], target)
    assert torch.equal(tokens.scales.cpu(), expected.scales)
    assert torch.equal(tokens.elements.cpu().view(torch.int8), expected.elements.view(torch.int8))


def test_triton_scale_of_a_token_with_a_nan_is_nan(triton_device):
    hidden = torch.ones(3, 16, device=triton_device)
    hidden[1, 5] = torch.nan
    tokens = triton_kernels.QUANT_KERNELS.quantize_tokens(hidden, torch.int8)
    assert tokens.scales.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("target", LARGEST, ids=str)
def test_triton_norms_and_activation_hand_on_what_quantising_their_results_gives(triton_device, target):
    torch.manual_seed(0)
    kernels = triton_kernels.QUANT_KERNELS
    hidden, residual = torch.randn(2, 9, 80, device=triton_device)
    weight = torch.randn(80, device=triton_device)
    normalised = triton_kernels.rms_norm(hidden, weight, 1e-5)
    total, of_total = triton_kernels.add_rms_norm(hidden, residual, weight, 1e-5)
    quantized_total, quantized_of_total = kernels.quantized_add_rms_norm(hidden, residual, weight, 1e-5, target)
    assert torch.equal(quantized_total, total)
    activated = triton_kernels.silu_and_mul(hidden, residual)
    for plain, quantized in (
        (normalised, kernels.quantized_rms_norm(hidden, weight, 1e-5, target)),
        (of_total, quantized_of_total),
        (activated, kernels.quantized_silu_and_mul(hidden, residual, target)),
    ):
        expected = kernels.quantize_tokens(plain, target)
        assert quantized.shape == plain.shape
        assert torch.equal(quantized.scales, expected.scales)
        assert torch.equal(quantized.elements.view(torch.int8), expected.elements.view(torch.int8))


@pytest.mark.parametrize(("num_tokens", "size", "num_channels"), [(3, 64, 20), (17, 300, 70)])
def test_triton_fp8_product_is_close_to_the_reference(triton_device, num_tokens, size, num_channels):
    if triton_device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs compute capability 8.9")
    torch.manual_seed(0)
    weight = quantize_weight(torch.randn(num_channels, size), torch.float8_e4m3fn)
    tokens = reference.QUANT_KERNELS.quantize_tokens(torch.randn(num_tokens, size), torch.float8_e4m3fn)
    expected = reference.QUANT_KERNELS.quant_linear(tokens, weight, None, None, torch.float32)
    output = triton_kernels.QUANT_KERNELS.quant_linear(
        on(triton_device, tokens), on(triton_device, weight), None, None, torch.float32
    )
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-3, atol=1e-2)
