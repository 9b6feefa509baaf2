"""Swapped modules give the same bits, and can be left out."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_model, save_model
from torch import nn

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.fusion import (
    FusedGatedMLP,
    FusedRMSNorm,
    MergedLinears,
    PrepackedLinear,
    fuse_kernels,
    prepack_linears,
)
from infer.engine.sampling_params import SamplingParams
from infer.kernels.backend import select_backend

needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 arithmetic"
)


@needs_bfloat16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 17, 300])
def test_prepacked_linear_is_bit_identical(bias, num_rows):
    torch.manual_seed(0)
    linear = nn.Linear(48, 80, bias=bias).bfloat16().requires_grad_(False)
    hidden = torch.randn(1, num_rows, 48).bfloat16()
    assert torch.equal(PrepackedLinear(linear.weight, linear.bias)(hidden), linear(hidden))


@needs_bfloat16
@pytest.mark.parametrize("bias", [True, False])
def test_merged_linears_each_give_their_own_output(bias):
    torch.manual_seed(0)
    linears = [nn.Linear(48, size, bias=bias).bfloat16().requires_grad_(False) for size in (64, 16, 32)]
    parts = MergedLinears(linears).parts()
    first, second = torch.randn(1, 9, 48).bfloat16(), torch.randn(1, 9, 48).bfloat16()
    for hidden in (first, second, first):
        for part, linear in zip(parts, linears, strict=True):
            torch.testing.assert_close(part(hidden), linear(hidden))


@needs_bfloat16
def test_merged_linears_asked_out_of_turn_or_with_other_inputs_are_right():
    torch.manual_seed(0)
    linears = [nn.Linear(48, 32, bias=False).bfloat16().requires_grad_(False) for _ in range(2)]
    parts = MergedLinears(linears).parts()
    first, second = torch.randn(1, 9, 48).bfloat16(), torch.randn(1, 9, 48).bfloat16()
    for index, hidden in ((1, first), (1, second), (1, second), (0, first), (0, second), (1, second)):
        torch.testing.assert_close(parts[index](hidden), linears[index](hidden))


@needs_bfloat16
def test_merged_linears_keep_nothing_once_each_has_been_asked():
    linears = [nn.Linear(48, 32, bias=False).bfloat16().requires_grad_(False) for _ in range(2)]
    merged = MergedLinears(linears)
    hidden = torch.randn(1, 9, 48).bfloat16()
    for part in merged.parts():
        part(hidden)
    assert (merged._hidden, merged._outputs) == (None, {})


@needs_bfloat16
def test_every_bfloat16_linear_of_a_model_is_swapped():
    model = make_model("llama").bfloat16().requires_grad_(False)
    num_linears = sum(type(module) is nn.Linear for module in model.modules())
    assert prepack_linears(model) == num_linears > 0
    assert not any(type(module) is nn.Linear for module in model.modules())


def test_float32_model_is_left_as_it_is():
    model = make_model("llama")
    assert prepack_linears(model) == 0


def cpu_backend():
    return select_backend(torch.device("cpu"), torch.bfloat16, head_dim=16, block_size=16)


@pytest.mark.parametrize(
    ("model_type", "num_norms", "num_mlps"),
    # Gemma's norms add 1 to the weight, and its activation is GELU. Phi-3 has one layer for gate and up.
    [("llama", 7, 3), ("qwen3", 13, 3), ("gemma2", 0, 0), ("phi3", 7, 0), ("gpt2", 0, 0)],
)
def test_norms_and_gated_layers_are_swapped_only_where_they_compute_the_same(model_type, num_norms, num_mlps):
    model = make_model(model_type).bfloat16().requires_grad_(False)
    assert fuse_kernels(model, cpu_backend()) == num_norms + num_mlps
    assert sum(type(module) is FusedRMSNorm for module in model.modules()) == num_norms
    assert sum(type(module) is FusedGatedMLP for module in model.modules()) == num_mlps


def test_fused_norm_is_bit_identical():
    model = make_model("llama").bfloat16().requires_grad_(False)
    norm = model.model.norm
    norm.weight.copy_(torch.randn(32))
    fused = FusedRMSNorm(norm.weight, norm.variance_epsilon, cpu_backend())
    hidden = torch.randn(1, 50, 32).bfloat16()
    assert torch.equal(fused(hidden), norm(hidden))


def test_float32_model_and_reference_backend_keep_their_modules():
    assert fuse_kernels(make_model("llama"), cpu_backend()) == 0
    reference = select_backend(torch.device("cpu"), torch.bfloat16, head_dim=16, block_size=16, preferred="reference")
    assert fuse_kernels(make_model("llama").bfloat16(), reference) == 0


@needs_bfloat16
def test_output_does_not_depend_on_the_swaps(tmp_path):
    folder = save_model(tmp_path, "llama")
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

    def generate(prepack_linears, fuse_kernels):
        config = EngineConfig(
            model=str(folder), dtype="bfloat16", prepack_linears=prepack_linears, fuse_kernels=fuse_kernels
        )
        engine = Engine(config)
        assert (engine.num_prepacked_linears > 0) == prepack_linears
        assert (engine.num_fused_kernels > 0) == fuse_kernels
        return [completion.token_ids for completion in engine.generate([[5, 6, 7], [8] * 30], params)]

    plain = generate(False, False)
    assert generate(True, False) == plain
    assert generate(False, True) == plain
    assert generate(True, True) == plain
