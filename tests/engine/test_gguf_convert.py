"""A GGUF file becomes safetensors that compute the same, or is refused by name."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_gguf import save_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from infer.engine.errors import ModelError
from infer.engine.gguf_convert import convert_gguf

TOKENS = torch.arange(5, 60)[None]


@pytest.fixture
def convert(tmp_path):
    """Converts the file that `save_gguf` writes with these settings; gives the model, the directory and the report."""

    def run(*args, **settings):
        model = save_gguf(tmp_path / "tiny.gguf", *args, **settings)
        report = []
        return model, convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache" / "tiny", report.append), report

    return run


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_conversion_keeps_every_logit_of_a_float32_file(convert, model_type):
    # The loader derives qwen2's head_dim from the width, and takes the usual one for qwen3's.
    settings = {"llama": {}, "qwen2": {"hidden_size": 128}, "qwen3": {"head_dim": 128}}[model_type]
    model, directory, _ = convert(model_type, **settings)
    converted = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    assert converted.dtype is torch.float32
    torch.testing.assert_close(converted(TOKENS).logits, model(TOKENS).logits, rtol=0, atol=0)


def test_conversion_keeps_quantised_matrices_as_they_are(convert):
    _, directory, _ = convert(quantization=gguf.GGMLQuantizationType.Q8_0)
    config = json.loads((directory / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["architectures"] == ["LlamaForCausalLM"]
    types = config["quantization_config"]["types"]
    assert set(types.values()) == {"Q8_0"}
    tensors = load_file(directory / "model.safetensors")
    assert {f"{layer}.weight" for layer in types} == {name for name in tensors if tensors[name].dtype is torch.uint8}
    assert tensors["model.norm.weight"].dtype is torch.float32
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (32, 2 * 34)


@pytest.mark.parametrize("kind", ["Q5_0", "BF16"])
def test_conversion_makes_bfloat16_of_other_types(convert, kind):
    model, directory, _ = convert(quantization=gguf.GGMLQuantizationType[kind])
    converted = AutoModelForCausalLM.from_pretrained(directory)
    assert converted.dtype is torch.bfloat16
    assert not hasattr(converted.config, "quantization_config")
    weights = dict(model.named_parameters())
    for name, parameter in converted.named_parameters():
        torch.testing.assert_close(parameter.float(), weights[name], rtol=0.05, atol=0.06)


def test_conversion_is_done_once_and_says_so(convert, tmp_path, capfd):
    _, directory, report = convert()
    assert report == [
        "converting tiny.gguf to safetensors, once",
        f"converted tiny.gguf: {sum(path.stat().st_size for path in directory.iterdir()) / 1e6:.0f} MB in {directory}",
    ]
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    (tmp_path / "tiny.gguf").write_bytes(b"")
    convert_gguf(tmp_path / "tiny.gguf", directory, report.append)
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before
    assert len(report) == 2
    assert capfd.readouterr() == ("", "")


def test_conversion_keeps_the_tokenizer(convert):
    _, directory, _ = convert()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = "naïve café 🙂\n  indented, 1,000 <|im_end|>"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert ids[-1] == tokenizer.eos_token_id == 1
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == (
        "<|im_start|>user\nhi<|im_end|>\n"
    )


@pytest.mark.parametrize(("pre_tokenizer", "pieces"), [("gpt-2", ["a", " ", " 12"]), ("smollm", ["a", "  ", "1", "2"])])
def test_conversion_keeps_how_text_is_split(convert, pre_tokenizer, pieces):
    _, directory, _ = convert(keys={"tokenizer.ggml.pre": pre_tokenizer})
    splitter = AutoTokenizer.from_pretrained(directory).backend_tokenizer.pre_tokenizer
    text = "a  12"
    assert [text[begin:end] for _, (begin, end) in splitter.pre_tokenize_str(text)] == pieces


def test_conversion_ignores_what_lies_beside_the_file(convert, tmp_path):
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps({"model_type": "x", "auto_map": {"AutoConfig": "evil.Config"}}))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    convert()
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"keys": {"llama.rope.scaling.type": "linear"}},
            "sets 'llama.rope.scaling.type', which conversion would leave out: 'linear'",
        ),
        (
            {"keys": {"llama.expert_count": 4}},
            "sets 'llama.expert_count', which conversion would leave out: 4",
        ),
        (
            {"keys": {"llama.attention.head_count_kv": [2, 2, 1]}},
            "sets 'llama.attention.head_count_kv', which conversion would leave out: 3 values",
        ),
        (
            {"tensors": {"rope_freqs.weight": np.ones(8, np.float32)}},
            "holds the tensor 'rope_freqs.weight', which conversion would leave out",
        ),
        (
            {"tensors": {"blk.0.attn_q.bias": np.ones(64, np.float32)}},
            "holds the tensor 'blk.0.attn_q.bias', which conversion would leave out",
        ),
        (
            {"keys": {"general.architecture": "bloom"}},
            "has the architecture 'bloom'; llama, qwen2, qwen3 convert",
        ),
        (
            {"keys": {"tokenizer.ggml.pre": "llama-bpe"}},
            "splits text by the pre-tokenizer 'llama-bpe'; gpt-2, qwen2, smollm convert",
        ),
        (
            {"keys": {"tokenizer.ggml.model": "rwkv"}},
            "has a tokenizer of the kind 'rwkv'; gpt2 and llama convert",
        ),
        (
            {"keys": {"tokenizer.ggml.eos_token_id": 9999}},
            "has the eos token 9999 in a vocabulary of 384",
        ),
        (
            {"keys": {"split.count": 3}},
            "is one of 3 parts of a model",
        ),
    ],
)
def test_conversion_refuses_what_it_would_leave_out(convert, tmp_path, settings, message):
    with pytest.raises(ModelError) as caught:
        convert(**settings)
    assert str(caught.value) == f"{tmp_path / 'tiny.gguf'} {message}"
    assert caught.value.hint
    assert not (tmp_path / "cache" / "tiny").exists()


def test_conversion_refuses_a_value_that_the_loader_does_not_take_over(convert, tmp_path):
    with pytest.raises(ModelError, match=r"says attention.key_length 16, of which conversion made head_dim 128"):
        convert("qwen3", head_dim=16)


def test_conversion_refuses_a_file_that_lacks_a_tensor(convert):
    with pytest.raises(
        ModelError, match=r"lacks 1 tensors of its architecture: model\.layers\.2\.mlp\.up_proj\.weight"
    ):
        convert(without="blk.2.ffn_up.weight")


def test_conversion_refuses_a_tensor_of_another_shape(convert):
    with pytest.raises(ModelError, match=r"has blk\.1\.ffn_up\.weight of the shape \(64, 16\), not \(64, 32\)"):
        convert(tensors={"blk.1.ffn_up.weight": np.ones((64, 16), np.float32)})


def test_conversion_refuses_a_layer_too_many(convert):
    with pytest.raises(ModelError, match=r"a tensor that its architecture does not have: blk\.7\.ffn_norm\.weight"):
        convert(tensors={"blk.7.ffn_norm.weight": np.ones(32, np.float32)})


def test_file_that_says_it_has_more_layers_than_tensors_is_refused(convert):
    with pytest.raises(ModelError, match="says that it has 4,000,000,000 layers, and holds 29 tensors"):
        convert(keys={"llama.block_count": 4_000_000_000})
