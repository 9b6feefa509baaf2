"""Linear layers laid out once give what they gave before."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_model
from torch import nn

from infer.engine.prepack import MergedLinears, PrepackedLinear, prepack_linears

needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 arithmetic"
)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)])


def make_linears(sizes, dtype, bias=False):
    torch.manual_seed(0)
    return [nn.Linear(48, size, bias=bias).to(dtype).requires_grad_(False) for size in sizes]


@both_dtypes
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 17, 300])
def test_prepacked_linear_gives_the_same(bias, num_rows, dtype):
    (linear,) = make_linears([80], dtype, bias)
    hidden = torch.randn(1, num_rows, 48).to(dtype)
    prepacked = PrepackedLinear(linear.weight, linear.bias)(hidden)
    if dtype is torch.bfloat16:
        assert torch.equal(prepacked, linear(hidden))
    else:
        torch.testing.assert_close(prepacked, linear(hidden))


@both_dtypes
@pytest.mark.parametrize("bias", [True, False])
def test_merged_linears_each_give_their_own_output(bias, dtype):
    linears = make_linears([64, 16, 32], dtype, bias)
    parts = MergedLinears(linears).parts()
    first, second = torch.randn(2, 1, 9, 48).to(dtype)
    for hidden in (first, second, first):
        for part, linear in zip(parts, linears, strict=True):
            torch.testing.assert_close(part(hidden), linear(hidden))


@both_dtypes
def test_merged_linears_asked_out_of_turn_or_with_other_inputs_are_right(dtype):
    linears = make_linears([32, 32], dtype)
    parts = MergedLinears(linears).parts()
    first, second = torch.randn(2, 1, 9, 48).to(dtype)
    for index, hidden in ((1, first), (1, second), (1, second), (0, first), (0, second), (1, second)):
        torch.testing.assert_close(parts[index](hidden), linears[index](hidden))


@both_dtypes
def test_merged_linears_keep_nothing_once_each_has_been_asked(dtype):
    merged = MergedLinears(make_linears([32, 32], dtype))
    hidden = torch.randn(1, 9, 48).to(dtype)
    for part in merged.parts():
        part(hidden)
    assert (merged._hidden, merged._outputs) == (None, {})


@both_dtypes
def test_every_linear_of_a_model_is_swapped(dtype):
    model = make_model("llama").to(dtype).requires_grad_(False)
    num_linears = sum(type(module) is nn.Linear for module in model.modules())
    assert prepack_linears(model) == num_linears > 0
    assert not any(type(module) is nn.Linear for module in model.modules())


def test_model_of_another_dtype_is_left_as_it_is():
    assert prepack_linears(make_model("llama").half()) == 0
