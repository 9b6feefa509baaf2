"""What is read of a model directory are its own files, and weights are safetensors whatever names them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from infer.engine.errors import ModelError
from infer.engine.model_files import check_model_files, refuse_pickle, weight_files

if TYPE_CHECKING:
    from pathlib import Path


def refusal(check, directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check(directory)
    return str(caught.value)


def write_index(directory: Path, names: list[object]) -> Path:
    weight_map = {f"tensor.{number}": name for number, name in enumerate(names)}
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "MODEL.BIN", "a.pickle"])
def test_pickles_are_refused_with_how_to_convert_them(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError) as caught:
        weight_files(tmp_path)
    assert str(caught.value) == f"pickled weights are not loaded, for they can run code: {tmp_path / name}"
    assert "save_pretrained" in caught.value.hint
    with pytest.raises(ModelError):
        refuse_pickle(tmp_path / name)


def test_safetensors_beside_pickles_are_taken(tmp_path):
    for name in ("pytorch_model.bin", "model.safetensors", "consolidated.safetensors"):
        (tmp_path / name).write_bytes(b"")
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_shards_are_those_that_the_index_names(tmp_path):
    for name in ("b.safetensors", "a.safetensors", "other.safetensors"):
        (tmp_path / name).write_bytes(b"")
    write_index(tmp_path, ["b.safetensors", "a.safetensors", "b.safetensors"])
    assert weight_files(tmp_path) == [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]


def test_index_that_names_a_pickle_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    (tmp_path / "a.safetensors").write_bytes(b"")
    write_index(tmp_path, ["a.safetensors", "pytorch_model.bin"])
    assert refusal(weight_files, tmp_path).startswith("pickled weights are not loaded")


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "", "a\0.safetensors", None, 5, ["a"]]
)
def test_index_that_names_something_else_than_a_file_beside_it_is_refused(tmp_path, name):
    path = write_index(tmp_path, [name])
    assert refusal(weight_files, tmp_path) == f"{path} names what is no file beside it: {name!r}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"weight_map": {"a": "x.gguf"}}', " names what is no .safetensors file: 'x.gguf'"),
        ('{"weight_map": {"a": "x.safetensors"}}', " names a file that is not there: x.safetensors"),
        ('{"weight_map": {"a": ".."}}', " names what is no .safetensors file: '..'"),
        ('{"weight_map": {}}', " has no weight_map of tensors and their files"),
        ('{"weight_map": ["x.safetensors"]}', " has no weight_map of tensors and their files"),
        ("[]", " is no JSON object but a list"),
        ("{", " cannot be read: Expecting property name"),
    ],
)
def test_index_that_is_none_is_refused(tmp_path, content, message):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    assert refusal(weight_files, tmp_path).startswith(f"{path}{message}")


def test_distributed_checkpoint_is_refused(tmp_path):
    for name in ("model.safetensors", "shard-00000-model-00001-of-00001.safetensors"):
        (tmp_path / name).write_bytes(b"")
    assert refusal(weight_files, tmp_path).startswith("a distributed checkpoint is not run: ")


def test_directory_without_weights_is_refused(tmp_path):
    assert refusal(weight_files, tmp_path) == f"there is no model.safetensors in {tmp_path}"


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "merges.txt", "tokenizer.model"])
def test_link_out_of_the_directory_is_refused(tmp_path, name):
    (tmp_path / "secret").write_text("a key")
    model = tmp_path / "model"
    model.mkdir()
    (model / name).symlink_to("../secret")
    message = f"{model / name} is a link out of the model's directory: {tmp_path.resolve() / 'secret'}"
    assert refusal(check_model_files, model) == message


def test_link_among_the_additional_templates_is_refused(tmp_path):
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "default.jinja").symlink_to("/etc/hostname")
    assert "is a link out of the model's directory" in refusal(check_model_files, tmp_path)


def test_links_of_the_hubs_cache_pass(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    blob = tmp_path / "models--a--b" / "blobs" / "2"
    blob.parent.mkdir()
    blob.write_text("{}")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/2")
    check_model_files(snapshot)
    # The cache is no place of which a directory elsewhere could take its files.
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    (elsewhere / "tokenizer.json").symlink_to(blob)
    assert "is a link out of the model's directory" in refusal(check_model_files, elsewhere)


def test_links_within_the_directory_and_of_weights_pass(tmp_path):
    (tmp_path / "weights").write_bytes(b"")
    model = tmp_path / "model"
    model.mkdir()
    (model / "real.json").write_text("{}")
    (model / "tokenizer.json").symlink_to("real.json")
    (model / "model.safetensors").symlink_to("../weights")
    (model / "README.md").symlink_to("../weights")
    check_model_files(model)


def test_what_is_no_file_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    assert refusal(check_model_files, tmp_path) == f"{tmp_path / 'tokenizer.json'} is no regular file"
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "model.safetensors").symlink_to("/dev/zero")
    assert refusal(check_model_files, tmp_path) == f"{tmp_path / 'model.safetensors'} is no regular file"
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "merges.txt").symlink_to("nothing")
    assert refusal(check_model_files, tmp_path).startswith(f"{tmp_path / 'merges.txt'} cannot be read: ")
