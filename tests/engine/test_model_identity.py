"""Which part of a model has changed, told by the digests of its files."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from infer.engine.errors import ModelError
from infer.engine.model_identity import identify_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = {
    "model.safetensors": "model weights",
    "config.json": "model config",
    "generation_config.json": "generation config",
    "tokenizer.json": "tokenizer",
    "chat_template.jinja": "chat template",
}
MORE_FILES = {
    "tokenizer_config.json": "tokenizer",
    "tokenizer.model": "tokenizer",
    "special_tokens_map.json": "tokenizer",
    "added_tokens.json": "tokenizer",
    "vocab.json": "tokenizer",
    "vocab.txt": "tokenizer",
    "merges.txt": "tokenizer",
    "spiece.model": "tokenizer",
    "qwen.tiktoken": "tokenizer",
    "chat_template.json": "chat template",
    "chat_template": "chat template",
    "other.jinja": "chat template",
}
NO_PART_OF_IT = ["README.md", "model.safetensors.index.json", "LICENSE", ".gitattributes", "training_args.json"]
GROUPS = list(dict.fromkeys(FILES.values()))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for name in FILES:
        (directory / name).write_text(f"content of {name}")
    return directory


def identify(directory: Path) -> dict[str, object]:
    return identify_model(str(directory), None, lambda line: pytest.fail(line))


def changed(directory: Path, change: Callable[[], object]) -> list[str]:
    """The fields that differ afterwards."""
    before = identify(directory)
    change()
    after = identify(directory)
    assert list(before) == list(after) == GROUPS
    return [name for name in GROUPS if before[name] != after[name]]


def test_model_of_one_file_each_has_their_digests(model: Path) -> None:
    assert identify(model) == {
        group: f"sha256 {hashlib.sha256(f'content of {name}'.encode()).hexdigest()}" for name, group in FILES.items()
    }


@pytest.mark.parametrize("name", [*FILES, *MORE_FILES])
def test_change_of_a_file_shows_in_its_field_only(model: Path, name: str) -> None:
    group = (FILES | MORE_FILES)[name]
    if name in MORE_FILES:
        assert changed(model, lambda: (model / name).write_text("one")) == [group]
    assert changed(model, lambda: (model / name).write_text("other")) == [group]
    assert changed(model, lambda: (model / name).write_text("other")) == []
    if name not in ("model.safetensors",):
        assert changed(model, (model / name).unlink) == [group]


@pytest.mark.parametrize("name", NO_PART_OF_IT)
def test_what_decides_no_answer_does_not_count(model: Path, name: str) -> None:
    assert changed(model, lambda: (model / name).write_text("x")) == []
    assert changed(model, lambda: (model / "tokenizer").mkdir()) == []


def test_several_files_are_one_digest_with_their_names(model: Path) -> None:
    (model / "vocab.json").write_text("one")
    digests = {
        name: hashlib.sha256((model / name).read_bytes()).hexdigest() for name in ("tokenizer.json", "vocab.json")
    }
    together = hashlib.sha256(json.dumps(list(map(list, digests.items()))).encode()).hexdigest()
    assert identify(model)["tokenizer"] == f"2 files, sha256 {together}"
    assert changed(model, lambda: (model / "vocab.json").rename(model / "vocab.txt")) == ["tokenizer"]


def test_missing_files_are_none(model: Path) -> None:
    for name in ("generation_config.json", "tokenizer.json", "chat_template.jinja"):
        (model / name).unlink()
    found = identify(model)
    assert [name for name, digest in found.items() if digest == "none"] == [
        "generation config",
        "tokenizer",
        "chat template",
    ]


def test_model_may_be_moved(model: Path) -> None:
    before = identify(model)
    assert identify(model.rename(model.with_name("moved"))) == before


@pytest.mark.parametrize("name", ["ab" * 32, "ab" * 20, "AB" * 32])
def test_file_of_the_hubs_cache_is_known_by_its_name(model: Path, name: str) -> None:
    """Only where its name is a sha256: that of a small file is another kind of digest."""
    blobs = model.parent / "blobs"
    blobs.mkdir()
    (blobs / name).write_bytes(b"weights")
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(blobs / name)
    digest = name if name == "ab" * 32 else hashlib.sha256(b"weights").hexdigest()
    assert identify(model)["model weights"] == f"sha256 {digest}"


def test_file_of_such_a_name_elsewhere_is_read(model: Path) -> None:
    other = model.parent / ("ab" * 32)
    other.write_bytes(b"weights")
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(other)
    assert identify(model)["model weights"] == f"sha256 {hashlib.sha256(b'weights').hexdigest()}"


def test_model_that_is_not_there_is_an_error(model: Path) -> None:
    with pytest.raises(ModelError, match="there is no such model directory or file"):
        identify(model / "no" / "model" / "here")
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"^there is no model\.safetensors in "):
        identify(model)


def test_model_whose_file_cannot_be_read_is_an_error(model: Path) -> None:
    (model / "tokenizer.model").symlink_to("/proc/self/mem")
    with pytest.raises(ModelError, match=f"^{model} cannot be read: Input/output error$"):
        identify(model)


def test_shards_are_one_field(model: Path) -> None:
    (model / "model.safetensors").unlink()
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": dict(zip("ab", shards, strict=True))}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in shards:
        (model / name).write_text("one")
    for name in shards:
        assert changed(model, partial((model / name).write_text, "other")) == ["model weights"]
