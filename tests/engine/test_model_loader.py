"""A directory of safetensors becomes a network that is transformers' own."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import ARCHITECTURES, make_config, make_model, save_model

from infer.engine import model_loader
from infer.engine.errors import ModelError

CPU = torch.device("cpu")
TOKENS = torch.arange(5, 60)[None]


@pytest.fixture
def load():
    """`load_model` with what the tests have in common; the report's lines are in `load.report`."""
    report = []
    load = partial(model_loader.load_model, device=CPU, attn_implementation="eager", report=report.append)
    load.report = report
    return load


@pytest.fixture
def change_config(tmp_path):
    """Saves a tiny llama whose config is then changed; gives its directory as a name."""

    def change(**changes):
        save_model(tmp_path, "llama")
        path = tmp_path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return str(tmp_path)

    return change


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_loaded_model_computes_what_was_saved(load, tmp_path, model_type):
    loaded = load(str(save_model(tmp_path, model_type)))
    torch.testing.assert_close(loaded.model(TOKENS).logits, make_model(model_type)(TOKENS).logits, rtol=0, atol=0)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert load.report == []


def test_loaded_model_is_described(load, tmp_path, capfd):
    directory = save_model(tmp_path, "llama")
    capfd.readouterr()
    loaded = load(str(directory))
    assert loaded.name == str(directory)
    assert loaded.dtype is torch.float32
    assert loaded.num_bytes == sum(tensor.nbytes for tensor in load_file(directory / "model.safetensors").values())
    assert loaded.config.model_type == "llama"
    assert loaded.tokenizer.decode(loaded.tokenizer("naïve")["input_ids"]) == "naïve"
    assert capfd.readouterr() == ("", "")


def test_tied_weights_are_counted_once(load, tmp_path):
    tied = load(str(save_model(tmp_path / "tied", "llama", tie_word_embeddings=True)))
    untied = load(str(save_model(tmp_path / "untied", "llama", tie_word_embeddings=False)))
    assert untied.num_bytes - tied.num_bytes == untied.model.lm_head.weight.nbytes
    assert tied.model.lm_head.weight is tied.model.model.embed_tokens.weight


def test_eos_is_the_union_of_all_that_name_one(load, tmp_path):
    directory = save_model(tmp_path, "llama", eos_token_id=7)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load(str(directory)).eos_token_ids == {1, 5, 6, 7}


def test_requested_dtype_is_converted_to(load, tmp_path):
    loaded = load(str(save_model(tmp_path, "llama")), dtype="bfloat16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.dtype is torch.bfloat16


def test_dtype_that_differs_from_the_checkpoint_is_said(load, tmp_path):
    directory = save_model(tmp_path, "llama")
    make_model("llama").half().save_pretrained(directory)
    loaded = load(str(directory))
    assert loaded.dtype is torch.float32
    assert load.report == [f"{directory} runs in float32: its own float16 is not fast on this cpu"]


def test_code_in_a_config_is_refused_and_not_run(load, change_config, tmp_path):
    name = change_config(auto_map={"AutoConfig": "evil.Config"}, model_type="evil")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    with pytest.raises(ModelError, match="names code to be loaded"):
        load(name)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 64}, "its weights do not have the shapes that its config.json asks for"),
        ({"hidden_size": "wide"}, "StrictDataclassFieldValidationError: Validation error for field 'hidden_size': "),
        ({"num_attention_heads": 0}, "ZeroDivisionError: integer modulo by zero"),
        ({"rope_parameters": {"rope_type": "no_such", "rope_theta": 1.0}}, "KeyError: 'no_such'"),
    ],
)
def test_config_that_cannot_be_built_is_a_model_error(load, change_config, changes, reason):
    name = change_config(**changes)
    with pytest.raises(ModelError) as caught:
        load(name)
    assert str(caught.value).startswith(f"{name} cannot be loaded: {reason}")


def test_missing_weights_are_refused_by_name(load, change_config):
    name = change_config(num_hidden_layers=4)
    with pytest.raises(ModelError) as caught:
        load(name)
    assert str(caught.value) == (
        f"{name} lacks 9 of its weights: model.layers.3.input_layernorm.weight, "
        "model.layers.3.mlp.down_proj.weight, model.layers.3.mlp.gate_proj.weight, ..."
    )


def test_weights_without_a_place_are_said(load, tmp_path):
    directory = save_model(tmp_path, "llama")
    weights = load_file(directory / "model.safetensors")
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}
    save_file(weights | bias, directory / "model.safetensors", metadata={"format": "pt"})
    load(str(directory))
    assert load.report == [
        f"{directory} has 1 weights that its config.json has no place for: model.layers.0.self_attn.q_proj.bias"
    ]


def test_cut_off_weights_are_a_model_error(load, tmp_path):
    directory = save_model(tmp_path, "llama")
    with (directory / "model.safetensors").open("r+b") as file:
        file.truncate(10_000)
    with pytest.raises(ModelError, match="no usable safetensors file: its tensors end at byte "):
        load(str(directory))


def test_directory_without_a_tokenizer_is_a_model_error(load, tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be loaded: "):
        load(str(tmp_path))


ROPE = {"rope_theta": 10000.0}
SCALED = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("model_type", "rope_parameters", "expected"),
    [
        ("gpt2", {}, None),
        ("llama", ROPE | {"rope_type": "default"}, None),
        ("llama", ROPE | {"rope_type": "linear", "factor": 2.0}, None),
        ("llama", ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, None),
        ("llama", ROPE | {"rope_type": "dynamic", "factor": 2.0}, 512),
        ("llama", ROPE | {"rope_type": "longrope", "factor": 4.0} | SCALED, 128),
        ("phi3", ROPE | {"rope_type": "longrope"} | SCALED, 4096),  # phi3 has its own place for the original length
        (
            "gemma3_text",
            {
                "full_attention": ROPE | {"rope_type": "longrope", "factor": 4.0} | SCALED,
                "sliding_attention": ROPE | {"rope_type": "default"},
            },
            128,
        ),
    ],
)
def test_length_is_limited_where_the_rotary_table_changes_with_the_batch(model_type, rope_parameters, expected):
    config = make_config(
        model_type, hidden_size=64, **({"rope_parameters": rope_parameters} if rope_parameters else {})
    )
    assert model_loader.max_exact_model_len(config) == expected


def test_tokenizer_at_which_its_library_panics_is_a_model_error(load, tmp_path):
    """A panic is no Exception."""
    directory = save_model(tmp_path, "llama")
    path = directory / "tokenizer.json"
    broken = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | broken))
    with pytest.raises(ModelError, match="cannot be loaded: PanicException: "):
        load(str(directory))
