"""dequant_linear: every implementation against the reference."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from weight_blocks import numbers_of, random_blocks

from infer.kernels import cpu, reference
from infer.kernels.backend import select_backend
from infer.kernels.dequant_linear import dequant_linear
from infer.kernels.gguf_blocks import PACKED_TYPES, blocks_to_codes
from infer.kernels.grouped_weight import Codes, pack_codes, unpack_weight


def assert_equal_up_to_rounding(output, hidden, weights, bias=None):
    """Sums in float32 are off by units in the last place of all that was added; the result is rounded once more."""
    dtype = hidden.dtype
    numbers = torch.cat([unpack_weight(weight).to(dtype) for weight in weights]).double()
    expected = F.linear(hidden.double(), numbers, None if bias is None else bias.double())
    magnitude = hidden.double().abs() @ numbers.abs().T
    allowed = 2.0**-20 * magnitude + torch.finfo(dtype).eps / 2 * expected.abs()
    assert output.dtype is dtype
    assert output.shape == expected.shape
    assert bool(((output - expected).abs() <= allowed).all()), (output - expected).abs().max()


def make_weight(type_name, num_rows, num_columns, seed=0):
    blocks = random_blocks(type_name, num_rows, num_columns, seed=seed)
    return pack_codes(blocks_to_codes(type_name, torch.from_numpy(blocks)))


def test_reference_is_a_linear_layer_of_the_numbers():
    blocks = random_blocks("Q4_K", 24, 256)
    hidden, bias = torch.randn(2, 3, 256), torch.randn(24)
    weight = pack_codes(blocks_to_codes("Q4_K", torch.from_numpy(blocks)))
    expected = F.linear(hidden, numbers_of("Q4_K", blocks), bias)
    torch.testing.assert_close(reference.dequant_linear(hidden, [weight], bias), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("type_name", sorted(PACKED_TYPES))
@pytest.mark.parametrize("num_rows", [0, 1, 7, 63])
@pytest.mark.parametrize(("out_features", "in_features"), [(16, 256), (130, 512), (1000, 256)])
def test_cpu_equals_the_reference(out_features, in_features, num_rows, type_name, dtype):
    torch.manual_seed(num_rows)
    weight = make_weight(type_name, out_features, in_features)
    hidden = torch.randn(num_rows, in_features).to(dtype)
    assert_equal_up_to_rounding(cpu.dequant_linear(hidden, [weight]), hidden, [weight])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_adds_up_rows_and_columns_that_no_panel_holds(dtype):
    torch.manual_seed(0)
    weight, hidden = make_weight("Q4_1", 72, 5152), torch.randn(1, 701, 5152).to(dtype)
    assert_equal_up_to_rounding(cpu.dequant_linear(hidden, [weight]), hidden, [weight])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_takes_several_weights_as_one(dtype):
    weights = [make_weight("Q4_K", 33, 256), make_weight("Q6_K", 20, 256), make_weight("Q8_0", 64, 256)]
    hidden, bias = torch.randn(5, 256).to(dtype), torch.randn(117).to(dtype)
    backend = select_backend(torch.device("cpu"), dtype, head_dim=64, block_size=16)
    assert backend.name == "cpu"
    output = dequant_linear(hidden, weights, bias, backend=backend)
    assert_equal_up_to_rounding(output, hidden, weights, bias)
    parts = [
        dequant_linear(hidden, [weight], part.contiguous(), backend=backend)
        for weight, part in zip(weights, bias.split([33, 20, 64]), strict=True)
    ]
    torch.testing.assert_close(output, torch.cat(parts, -1), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [16, 48, 144])
def test_cpu_takes_scales_in_float32_for_groups_of_any_size(group, dtype):
    codes = torch.randint(-128, 128, (40, 144)).to(torch.int8)
    weight = pack_codes(Codes(codes, 8, zero=0, group=group, scales=torch.rand(40, 144 // group) / 100))
    hidden = torch.randn(9, 144).to(dtype)
    assert_equal_up_to_rounding(cpu.dequant_linear(hidden, [weight]), hidden, [weight])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_does_not_depend_on_the_rows_beside_it(dtype):
    weight, hidden = make_weight("Q4_1", 200, 576), torch.randn(301, 576).to(dtype)
    together = cpu.dequant_linear(hidden, [weight])
    for first, end in ((0, 1), (5, 12), (290, 301)):
        alone = cpu.dequant_linear(hidden[first:end].clone(), [weight])
        torch.testing.assert_close(alone, together[first:end], rtol=0, atol=0)


def test_rows_may_lie_apart():
    weight, hidden = make_weight("Q8_0", 32, 64), torch.randn(11, 200)[:, 8:72]
    torch.testing.assert_close(
        cpu.dequant_linear(hidden, [weight]), cpu.dequant_linear(hidden.contiguous(), [weight]), rtol=0, atol=0
    )


def test_small_scales_are_not_lost():
    """float16's smallest numbers have no exponent of their own."""
    codes = torch.arange(256).to(torch.uint8).to(torch.int8).view(16, 16)
    scales = torch.tensor([2.0**-24, 2.0**-15, -(2.0**-14), 65504.0] * 4, dtype=torch.float16).view(16, 1)
    weight = pack_codes(Codes(codes, 8, zero=0, group=16, scales=scales))
    torch.testing.assert_close(
        cpu.dequant_linear(torch.eye(16), [weight]), reference.dequant_linear(torch.eye(16), [weight]), rtol=0, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_lets_a_nan_be_seen(dtype):
    hidden = torch.zeros(3, 64, dtype=dtype)
    hidden[1, 5] = torch.nan
    output = cpu.dequant_linear(hidden, [make_weight("Q4_0", 20, 64)])
    assert output[1].isnan().all()
    assert not output[[0, 2]].isnan().any()
