"""Swapped modules give the same bits, and can be left out."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_model, save_model
from torch import nn

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.fusion import PrepackedLinear, prepack_linears
from infer.engine.sampling_params import SamplingParams

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
    assert torch.equal(PrepackedLinear(linear)(hidden), linear(hidden))


@needs_bfloat16
def test_every_bfloat16_linear_of_a_model_is_swapped():
    model = make_model("llama").bfloat16().requires_grad_(False)
    num_linears = sum(type(module) is nn.Linear for module in model.modules())
    assert prepack_linears(model) == num_linears > 0
    assert not any(type(module) is nn.Linear for module in model.modules())


def test_float32_model_is_left_as_it_is():
    model = make_model("llama")
    assert prepack_linears(model) == 0


@needs_bfloat16
def test_output_does_not_depend_on_prepacking(tmp_path):
    folder = save_model(tmp_path, "llama")
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

    def generate(prepack_linears):
        config = EngineConfig(model=str(folder), dtype="bfloat16", prepack_linears=prepack_linears)
        engine = Engine(config)
        assert (engine.num_prepacked_linears > 0) == prepack_linears
        return [completion.token_ids for completion in engine.generate([[5, 6, 7], [8] * 30], params)]

    assert generate(True) == generate(False)
