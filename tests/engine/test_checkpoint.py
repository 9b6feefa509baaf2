"""A checkpoint's files are judged before transformers sees them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from infer.engine.checkpoint import check_architecture, check_sizes, check_tokenizer_class, read_model_config
from infer.engine.errors import ModelError
from infer.engine.safetensors_header import StoredTensor

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
        {"configuration_files": ["config.4.0.0.json"]},
        {"attribute_map": {"harmless": "_experts_implementation"}},
        {"gguf_file": "other.gguf"},
        {"init_inputs": ["x"]},
        {"tokenizer_object": {}},
        {"__class__": "x"},
        {"text_config": {"layers": [{"auto_map": {}}]}},
    ],
)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json"]
)
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
        (
            '{"model_type": "llama", "model_type": "x"}',
            "config.json cannot be read: the key 'model_type' is there twice",
        ),
        ('{"model_type": "llama", "a": {"b": 1, "b": 1}}', "config.json cannot be read: the key 'b' is there twice"),
        ('{"model_type": ' + "9" * 5000 + "}", "config.json cannot be read: Exceeds the limit"),
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
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "{} is quantised in a way that is not run: gptq",
        ),
        ({"text_config": {"quantization_config": "x"}}, "{} is quantised in a way that is not run: x"),
        ({"compression_config": {"quant_method": "y"}}, "{} is quantised in a way that is not run: y"),
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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("special_tokens_map.json", {"tokenizer_file": "/etc/passwd"}),
        ("special_tokens_map.json", {"vocab_file": "../vocab.json"}),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../../tokenizer.4.0.json"]}),
        ("tokenizer_config.json", {"fast_tokenizer_files": "/x/tokenizer.4.0.json"}),
    ],
)
def test_file_outside_the_directory_is_not_read_because_a_config_names_it(tmp_path, name, content):
    write(write(tmp_path, LLAMA), content, name)
    with pytest.raises(ModelError, match="names what is no file beside it: "):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {"init_inputs": [], "fast_tokenizer_files": ["tokenizer.json"]},
        {"bos_token": {"__type": "AddedToken", "content": "<s>"}},
        {"special_tokens_map_file": "/home/somebody/special_tokens_map.json"},
    ],
)
def test_what_older_tokenizers_were_saved_with_passes(tmp_path, content):
    write(write(tmp_path, LLAMA), content, "tokenizer_config.json")
    assert read_model_config(tmp_path) == LLAMA


def test_config_that_gives_a_method_of_its_class_away_is_refused():
    with pytest.raises(ModelError, match=r"has a key that is the name of a method: 'to_dict'"):
        check_architecture(LLAMA | {"to_dict": "x"})


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "AutoModelForCausalLM", "pipeline", "AutoProcessor", 5, ["x"]])
@pytest.mark.parametrize("file_name", ["config.json", "tokenizer_config.json"])
def test_tokenizer_class_that_is_no_tokenizer_is_refused(tmp_path, name, file_name):
    write(write(tmp_path, LLAMA), {"tokenizer_class": name}, "tokenizer_config.json")
    config = LLAMA
    if file_name == "config.json":
        (tmp_path / "tokenizer_config.json").unlink()
        config = LLAMA | {"tokenizer_class": name}
    with pytest.raises(ModelError, match="names as tokenizer_class what is no tokenizer: "):
        check_tokenizer_class(tmp_path, config)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "LlamaTokenizer", "Qwen2TokenizerFast", "NoSuchTokenizer"])
def test_tokenizer_class_that_is_one_passes(tmp_path, name):
    write(tmp_path, {"tokenizer_class": name}, "tokenizer_config.json")
    check_tokenizer_class(tmp_path, LLAMA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**9}, "asks for 1,000,000,000 layers, the weights are 2 tensors"),
        ({"vocab_size": 10**12}, "asks for vocab_size 1,000,000,000,000 by 8, the weights are 112 numbers"),
        ({"intermediate_size": 15}, "asks for intermediate_size 15 by 8, the weights are 112 numbers"),
    ],
)
def test_config_that_asks_for_more_than_its_weights_are_is_refused(change, message):
    tensors = [StoredTensor("embed", "F32", (6, 8)), StoredTensor("up", "F32", (8, 8))]
    config = {"num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 6, "intermediate_size": 8}
    check_sizes(config, tensors)
    with pytest.raises(ModelError) as caught:
        check_sizes(config | change, tensors)
    assert str(caught.value) == f"config.json {message}"
