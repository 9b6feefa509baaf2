"""Linear layers in int8, in models of every architecture."""

from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import ARCHITECTURES, make_config, make_model, save_model
from torch import nn

from infer.engine.attention import ATTENTION_NAME, register
from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.fusion import fuse_kernels
from infer.engine.probing import AttentionRecorder, random_angles, random_hidden
from infer.engine.quantization import quantize_linears, quantized
from infer.engine.quantized_layer import QuantizedDecoderLayer
from infer.engine.quantized_linear import QuantizedLinear
from infer.engine.sampling_params import SamplingParams
from infer.kernels.backend import select_backend
from infer.kernels.quant_linear import quantize_tokens

CPU = torch.device("cpu")


def make_backend(dtype=torch.float32, preferred="auto", head_dim=32):
    return select_backend(CPU, dtype, head_dim=head_dim, block_size=16, preferred=preferred)


def quantize(model, dtype=torch.float32, backend=None):
    return quantize_linears(model, backend or make_backend(dtype), CPU, dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_linear_is_close_to_the_layer(dtype, bias):
    torch.manual_seed(0)
    linear = nn.Linear(64, 80, bias=bias).to(dtype).requires_grad_(False)
    hidden = torch.randn(1, 30, 64).to(dtype)
    output, expected = quantized(linear, make_backend(dtype))(hidden), linear(hidden)
    assert output.dtype is dtype
    assert (output - expected).abs().mean() < 0.02 * expected.abs().mean()


def test_quantized_linear_takes_tokens_that_are_quantised_already():
    linear = quantized(nn.Linear(64, 80).requires_grad_(False), make_backend())
    hidden = torch.randn(1, 30, 64)
    tokens = quantize_tokens(hidden, *linear.wanted, backend=make_backend())
    assert torch.equal(linear(tokens), linear(hidden))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    # GPT-2's layers are no nn.Linear, but for the last; the experts of a mixture are one tensor each.
    ("model_type", "num_layers", "is_all"),
    [("llama", 22, True), ("phi3", 13, True), ("gpt2", 1, False), ("mixtral", 13, False), ("qwen3_moe", 13, False)],
)
def test_every_linear_layer_is_quantised(model_type, num_layers, is_all, backend):
    model = make_model(model_type).requires_grad_(False)
    part = quantize(model, backend=make_backend(preferred=backend))
    assert part.num_layers == num_layers
    assert (part.share == 1.0) == is_all
    assert sum(type(module) is QuantizedLinear for module in model.modules()) == num_layers
    assert not any(type(module) is nn.Linear for module in model.modules())


def test_layers_that_choose_among_experts_are_left():
    model = nn.ModuleDict({"gate": nn.Linear(32, 4), "up_proj": nn.Linear(32, 64)}).requires_grad_(False)
    assert quantize(model).num_layers == 1
    assert type(model["gate"]) is nn.Linear


def test_attention_without_kernels_does_not_keep_linear_layers_from_theirs():
    backend = make_backend(head_dim=24)
    assert backend.fallback_reason is not None
    model = nn.ModuleDict({"up_proj": nn.Linear(32, 64)}).requires_grad_(False)
    quantize(model, backend=backend)
    assert model["up_proj"]._backend.name == "cpu"


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_logits_of_every_architecture_stay_close(model_type):
    model = make_model(model_type, initializer_range=0.1).requires_grad_(False)
    input_ids = torch.arange(4, 40)[None]
    with torch.inference_mode():
        expected = model(input_ids).logits
        quantize(model)
        logits = model(input_ids).logits
    assert (logits - expected).abs().mean() < 0.1 * expected.std()
    assert not torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("model_type", "num_layers"), [("llama", 3), ("mistral", 3), ("gemma2", 0), ("qwen3", 3)])
def test_whole_layers_hand_on_int8_and_give_the_same(model_type, num_layers, dtype):
    register()
    config = make_config(model_type)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)
    model = model.to(dtype).eval().requires_grad_(False)
    fuse_kernels(model, make_backend(dtype))
    before = list(model.model.layers)
    quantize(model, dtype)
    swapped = [(layer, after) for layer, after in zip(before, model.model.layers, strict=True) if layer is not after]
    assert len(swapped) == num_layers
    for layer, after in swapped:
        assert type(after) is QuantizedDecoderLayer
        inputs = {"position_embeddings": random_angles(32, dtype), "attention_context": AttentionRecorder()}
        hidden = random_hidden(32, dtype)
        assert torch.equal(after(hidden, **inputs), layer(hidden, **inputs))


@pytest.mark.parametrize("settings", [{}, {"fuse_kernels": False}, {"prepack_linears": False}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_engine_says_what_is_quantised_and_answers(tmp_path, dtype, settings):
    folder = save_model(tmp_path, "llama")
    engine = Engine(EngineConfig(model=str(folder), dtype=dtype, quantization="int8", **settings))
    [line] = [line for line in engine.describe() if "int8" in line]
    # Siblings are merged where layers are fused.
    num_layers = 22 if settings == {"fuse_kernels": False} else 13
    assert line == f"int8 weights in {num_layers} linear layers, 100% of what is multiplied"
    [completion] = engine.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    assert completion.error is None
    assert len(completion.token_ids) == 8


def test_nothing_is_quantised_unasked(tmp_path):
    engine = Engine(EngineConfig(model=str(save_model(tmp_path, "llama"))))
    assert engine.network.quantized is None
    assert not any(type(module) is QuantizedLinear for module in engine.network.model.modules())
