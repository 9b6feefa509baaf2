"""Linear layers laid out once give what they gave before."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_model
from torch import nn

from infer.engine.prepack import MergedLinears, OneDNNLinear, PackedLinear, prepack_linears
from infer.kernels.linear import why_not_cpu

needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 arithmetic"
)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)])


both_makers = pytest.mark.parametrize("make", [OneDNNLinear, PackedLinear])


def make_linears(sizes, dtype, bias=False):
    torch.manual_seed(0)
    return [nn.Linear(48, size, bias=bias).to(dtype).requires_grad_(False) for size in sizes]


@both_dtypes
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 17, 300])
def test_onednn_linear_gives_the_same(bias, num_rows, dtype):
    (linear,) = make_linears([80], dtype, bias)
    hidden = torch.randn(1, num_rows, 48).to(dtype)
    prepacked = OneDNNLinear(linear.weight, linear.bias)(hidden)
    if dtype is torch.bfloat16:
        assert torch.equal(prepacked, linear(hidden))
    else:
        torch.testing.assert_close(prepacked, linear(hidden))


@both_dtypes
@both_makers
@pytest.mark.parametrize("bias", [True, False])
def test_merged_linears_each_give_their_own_output(bias, dtype, make):
    linears = make_linears([64, 16, 32], dtype, bias)
    parts = MergedLinears(linears, make).parts()
    first, second = torch.randn(2, 1, 9, 48).to(dtype)
    for hidden in (first, second, first):
        for part, linear in zip(parts, linears, strict=True):
            torch.testing.assert_close(part(hidden), linear(hidden))


@both_dtypes
@both_makers
def test_merged_linears_asked_out_of_turn_or_with_other_inputs_are_right(dtype, make):
    linears = make_linears([32, 32], dtype)
    parts = MergedLinears(linears, make).parts()
    first, second = torch.randn(2, 1, 9, 48).to(dtype)
    for index, hidden in ((1, first), (1, second), (1, second), (0, first), (0, second), (1, second)):
        torch.testing.assert_close(parts[index](hidden), linears[index](hidden))


@both_dtypes
@both_makers
def test_merged_linears_keep_nothing_once_each_has_been_asked(dtype, make):
    merged = MergedLinears(make_linears([32, 32], dtype), make)
    hidden = torch.randn(1, 9, 48).to(dtype)
    for part in merged.parts():
        part(hidden)
    assert (merged._hidden, merged._outputs) == (None, {})


@both_dtypes
@pytest.mark.parametrize("backend", ["auto", "cpu", "onednn"])
def test_every_linear_of_a_model_is_swapped(backend, dtype):
    model = make_model("llama").to(dtype).requires_grad_(False)
    num_linears = sum(type(module) is nn.Linear for module in model.modules())
    is_ours = backend != "onednn" and why_not_cpu(dtype, 64) is None
    assert prepack_linears(model, backend) == (num_linears if is_ours or backend != "cpu" else 0)
    assert any(type(module) is PackedLinear for module in model.modules()) == is_ours
    assert is_ours or backend == "cpu" or any(type(module) is OneDNNLinear for module in model.modules())


def test_model_of_another_dtype_is_left_as_it_is():
    assert prepack_linears(make_model("llama").half()) == 0
