"""A layer is swapped only where the swap asks for the same attention and makes the same of it."""

from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import make_config, save_model

from infer.engine.attention import ATTENTION_NAME, register
from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.fused_attention import FusedAttention
from infer.engine.fusion import fuse_kernels
from infer.engine.sampling_params import SamplingParams
from infer.kernels.backend import select_backend


def count_fused(model_type, **overrides):
    register()
    config = make_config(model_type, **overrides)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)
    model = model.bfloat16().eval().requires_grad_(False)
    fuse_kernels(model, select_backend(torch.device("cpu"), torch.bfloat16, head_dim=32, block_size=16))
    return sum(type(module) is FusedAttention for module in model.modules())


@pytest.mark.parametrize(
    ("model_type", "num_layers"),
    # Qwen3 and OLMo 2 norm their heads, GPT-NeoX and Phi-3 have one projection for all.
    [("llama", 3), ("qwen2", 3), ("mistral", 3), ("gemma2", 3), ("qwen3", 0), ("olmo2", 0), ("phi3", 0)],
)
def test_layers_are_swapped_only_where_they_compute_the_same(model_type, num_layers):
    assert count_fused(model_type, head_dim=32) == num_layers


def test_layers_whose_heads_do_not_suit_the_kernel_are_left():
    assert count_fused("llama", head_dim=16) == 0


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2"])
def test_output_does_not_depend_on_the_swap(tmp_path, model_type):
    folder = save_model(tmp_path, model_type, head_dim=32)
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)

    def generate(fuse_kernels):
        engine = Engine(EngineConfig(model=str(folder), dtype="bfloat16", fuse_kernels=fuse_kernels))
        assert (engine.num_fused_kernels > 0) == fuse_kernels
        # Longer than the window of 24 tokens.
        return [completion.token_ids for completion in engine.generate([[5, 6, 7], list(range(8, 48))], params)]

    assert generate(True) == generate(False)
