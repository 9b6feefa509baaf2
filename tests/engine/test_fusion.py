"""Swapped modules give the same, and can be left out."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_model, save_model

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.fused_modules import FusedGatedMLP, FusedRMSNorm
from infer.engine.fusion import fuse_kernels
from infer.engine.sampling_params import SamplingParams
from infer.kernels.backend import select_backend


def make_backend(dtype=torch.bfloat16, preferred="cpu"):
    return select_backend(torch.device("cpu"), dtype, head_dim=16, block_size=16, preferred=preferred)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model_type", "num_norms", "num_mlps"),
    # Gemma's norms add 1 to the weight, and its activation is GELU. Phi-3 has one layer for gate and up.
    [("llama", 7, 3), ("qwen3", 13, 3), ("gemma2", 0, 0), ("phi3", 7, 0), ("gpt2", 0, 0)],
)
def test_norms_and_gated_layers_are_swapped_only_where_they_compute_the_same(model_type, num_norms, num_mlps, dtype):
    model = make_model(model_type).to(dtype).requires_grad_(False)
    assert fuse_kernels(model, make_backend(dtype)) >= num_norms + num_mlps
    assert sum(type(module) is FusedRMSNorm for module in model.modules()) == num_norms
    assert sum(type(module) is FusedGatedMLP for module in model.modules()) == num_mlps


def test_fused_norm_is_bit_identical_in_bfloat16():
    model = make_model("llama").bfloat16().requires_grad_(False)
    norm = model.model.norm
    norm.weight.copy_(torch.randn(32))
    fused = FusedRMSNorm(norm.weight, norm.variance_epsilon, make_backend())
    hidden = torch.randn(1, 50, 32).bfloat16()
    assert torch.equal(fused(hidden), norm(hidden))


def test_model_of_another_dtype_or_backend_keeps_its_modules():
    assert fuse_kernels(make_model("llama").half(), make_backend()) == 0
    assert fuse_kernels(make_model("llama"), make_backend(preferred="reference")) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mistral", "gemma2", "qwen3"])
def test_output_does_not_depend_on_the_swaps(tmp_path, model_type, dtype):
    folder = save_model(tmp_path, model_type)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)

    def generate(prepack_linears, fuse_kernels):
        config = EngineConfig(
            model=str(folder), dtype=dtype, prepack_linears=prepack_linears, fuse_kernels=fuse_kernels
        )
        engine = Engine(config)
        can_prepack = dtype == "float32" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        assert (engine.network.num_prepacked_linears > 0) == (prepack_linears and can_prepack)
        assert (engine.network.num_fused_kernels > 0) == fuse_kernels
        # Longer than the window of 24 tokens.
        return engine.generate([[5, 6, 7], list(range(8, 48))], params)

    plain = generate(False, False)
    for swaps in ((True, False), (False, True), (True, True)):
        for completion, expected in zip(generate(*swaps), plain, strict=True):
            assert completion.token_ids == expected.token_ids or (
                dtype == "bfloat16" and parts_at_a_tie(completion.token_ids, expected)
            )


def parts_at_a_tie(token_ids, expected):
    """Whether the first token that differs was, but for rounding in bfloat16, as probable as the expected one."""
    place = [token_id == other for token_id, other in zip(token_ids, expected.token_ids, strict=True)].index(False)
    (first, highest), (second, lower) = expected.choices[0].logprobs[place].top
    return {first, second} == {token_ids[place], expected.token_ids[place]} and highest - lower < 0.03
