"""A checkpoint's files are judged before transformers sees them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from infer.engine.checkpoint import check_architecture, read_model_config, safetensors_files
from infer.engine.errors import ModelError

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def write(directory, config, name="config.json"):
    (directory / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return directory


def refusal_of_config(directory):
    with pytest.raises(ModelError) as caught:
        read_model_config(directory)
    assert caught.value.hint or "cannot be read" in str(caught.value) or "names no" in str(caught.value)
    return str(caught.value)


def test_config_is_read_without_importing_transformers(tmp_path):
    write(tmp_path, LLAMA)
    script = (
        "import sys; from pathlib import Path; from infer.engine.checkpoint import read_model_config;"
        "print(read_model_config(Path(sys.argv[1]))); assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", script, tmp_path], check=True, capture_output=True, text=True).stdout
    assert output == f"{LLAMA}\n"


@pytest.mark.parametrize(
    "change",
    [
        {"auto_map": {"AutoConfig": "configuration_evil.EvilConfig"}},
        {"_attn_implementation": "somebody/some-kernel"},
        {"_attn_implementation_internal": "somebody/some-kernel"},
        {"_attn_implementation_autoset": False},
        {"attn_implementation": "somebody/some-kernel"},
        {"experts_implementation": "somebody/some-kernel"},
        {"fusion_config": {"x": True}},
        {"transformers_weights": "pytorch_model.bin"},
        {"text_config": {"layers": [{"auto_map": {}}]}},
    ],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_config_that_names_code_is_refused(tmp_path, change, name):
    write(write(tmp_path, LLAMA), LLAMA | change, name)
    key = "auto_map" if "text_config" in change else next(iter(change))
    assert refusal_of_config(tmp_path) == (
        f"{tmp_path / name} names code to be loaded with the model, which is never done: {key!r}"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json cannot be read: Expecting property name"),
        ("[" * 100_000, "config.json cannot be read: "),
        ("\ud800", "config.json cannot be read: "),
        ("[]", "config.json is no JSON object but a list"),
        ("{}", "config.json names no model_type: None"),
        ('{"model_type": ["llama"]}', "config.json names no model_type: ['llama']"),
    ],
)
def test_config_that_is_none_is_refused(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelError) as caught:
        read_model_config(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "{} is a quantised checkpoint, which is not run yet: gptq"),
        ({"vision_config": {}}, "llama is not a text-only model: its config has a vision_config"),
    ],
)
def test_checkpoint_of_another_kind_is_refused(tmp_path, change, message):
    write(tmp_path, LLAMA | change)
    assert refusal_of_config(tmp_path) == message.format(tmp_path)


def test_adapter_is_refused(tmp_path):
    write(write(tmp_path, LLAMA), {"peft_type": "LORA"}, "adapter_config.json")
    assert refusal_of_config(tmp_path) == f"{tmp_path} holds an adapter, which is not run"


def test_directory_without_config_is_refused(tmp_path):
    assert refusal_of_config(tmp_path) == f"there is no config.json in {tmp_path}"


@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], [], None, "LlamaForCausalLM"])
def test_causal_language_model_passes(architectures):
    check_architecture(LLAMA | {"architectures": architectures})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"model_type": "no_such"}, "transformers has no causal language model of this type: no_such"),
        (LLAMA | {"model_type": "t5"}, "transformers has no causal language model of this type: t5"),
        (
            LLAMA | {"architectures": ["LlamaForSequenceClassification"]},
            "the checkpoint is a LlamaForSequenceClassification, not a causal language model",
        ),
        (
            {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
            "the checkpoint is a BertForMaskedLM, not a causal language model",
        ),
    ],
)
def test_other_architectures_are_refused_by_name(config, message):
    with pytest.raises(ModelError) as caught:
        check_architecture(config)
    assert str(caught.value) == message
    assert caught.value.hint


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickles_are_refused_with_how_to_convert_them(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError) as caught:
        safetensors_files(tmp_path)
    assert str(caught.value) == f"pickled weights are not loaded, for they can run code: {tmp_path / name}"
    assert "save_pretrained" in caught.value.hint


def test_safetensors_beside_pickles_are_taken(tmp_path):
    for name in ("pytorch_model.bin", "model-2.safetensors", "model-1.safetensors"):
        (tmp_path / name).write_bytes(b"")
    assert safetensors_files(tmp_path) == [tmp_path / "model-1.safetensors", tmp_path / "model-2.safetensors"]


def test_directory_without_weights_is_refused(tmp_path):
    with pytest.raises(ModelError) as caught:
        safetensors_files(tmp_path)
    assert str(caught.value) == f"there are no .safetensors files in {tmp_path}"
