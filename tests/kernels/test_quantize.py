"""What quantising keys and values loses, and what it keeps."""

from __future__ import annotations

import pytest
import torch

from infer.kernels.kv_pages import LARGEST, SMALLEST_PEAK
from infer.kernels.reference.quantize import dequantize, quantize

INT8, FP8 = torch.int8, torch.float8_e4m3fn


def round_trip(heads: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    elements, scales = quantize(heads, dtype)
    assert (elements.dtype, scales.dtype, scales.shape) == (dtype, torch.float32, heads.shape[:-1])
    return dequantize(elements, scales, torch.float64)


def make_heads() -> torch.Tensor:
    """Of very different sizes, some with one element far above the others."""
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(200, 3, 64, generator=generator) * 10.0 ** torch.arange(-8, 12).repeat(10).view(200, 1, 1)
    heads[::3, :, 7] *= 50.0
    return heads


def test_int8_is_off_by_half_a_step_of_the_heads_largest_element_at_most():
    heads = make_heads()
    steps = heads.abs().amax(-1, keepdim=True).double() / 127
    # The scale itself is rounded, and so is the quotient that becomes the element.
    assert ((round_trip(heads, INT8) - heads).abs() <= steps * (0.5 + 127 * 2**-22)).all()


def test_fp8_is_off_by_a_sixteenth_of_an_element_or_half_of_the_smallest_step_at_most():
    heads = make_heads()
    smallest_steps = heads.abs().amax(-1, keepdim=True).double() / 448 * 2**-9
    bound = torch.maximum(heads.abs().double() * 2**-4, smallest_steps / 2) * (1 + 2**-20)
    assert ((round_trip(heads, FP8) - heads).abs() <= bound).all()


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_largest_element_keeps_its_value_and_every_element_its_sign(dtype):
    heads = make_heads()
    back = round_trip(heads, dtype)
    largest = heads.abs().argmax(-1, keepdim=True)
    torch.testing.assert_close(back.gather(-1, largest), heads.double().gather(-1, largest), rtol=1e-6, atol=0.0)
    assert (back * heads >= 0).all()


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_what_is_stored_of_a_token_does_not_depend_on_others(dtype):
    heads = make_heads()
    elements, scales = quantize(heads, dtype)
    for token in (0, 17, 199):
        alone, scale = quantize(heads[token : token + 1], dtype)
        assert torch.equal(alone.view(torch.uint8), elements[token : token + 1].view(torch.uint8))
        assert torch.equal(scale, scales[token : token + 1])


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_zeros_stay_zeros_and_a_nan_takes_its_head_along(dtype):
    heads = torch.ones(3, 4)
    heads[0], heads[1, 2] = 0.0, torch.nan
    elements, scales = quantize(heads, dtype)
    assert scales[0] == torch.tensor(SMALLEST_PEAK) / LARGEST[dtype] > 0
    back = dequantize(elements, scales, torch.float32)
    assert not back[0].any()
    assert back[1].isnan().all()
    assert torch.equal(back[2], heads[2])
