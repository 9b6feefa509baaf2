"""What `--model` may say."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tiny_gguf import save_gguf

from infer.engine.errors import ModelError
from infer.engine.model_catalog import BUILTIN_MODELS
from infer.engine.model_source import builtin_path, fetch_model, resolve_model


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("INFER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def refusal(name, revision=None, *, of=resolve_model):
    with pytest.raises(ModelError) as caught:
        of(name, revision, lambda line: None)
    return str(caught.value), caught.value.hint


def test_directory_is_taken_as_it_is(tmp_path):
    assert resolve_model(str(tmp_path), None, lambda line: None) == tmp_path


def test_directory_named_like_a_built_in_model_comes_first(tmp_path):
    (tmp_path / "smollm2-135m").mkdir()
    assert resolve_model("smollm2-135m", None, lambda line: None).resolve() == tmp_path / "smollm2-135m"


def test_gguf_file_is_converted_once_whatever_it_is_called(tmp_path, home):
    save_gguf(tmp_path / "tiny.gguf")
    report = []
    first = resolve_model("tiny.gguf", None, report.append)
    assert first.parent == home / "models"
    assert (first / "model.safetensors").is_file()
    assert len(report) == 2
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tiny.gguf").rename(tmp_path / "elsewhere" / "tiny.gguf")
    assert resolve_model("elsewhere/tiny.gguf", None, report.append) == first
    assert len(report) == 2


def test_changed_gguf_file_is_converted_again(tmp_path):
    save_gguf(tmp_path / "tiny.gguf")
    first = resolve_model("tiny.gguf", None, lambda line: None)
    save_gguf(tmp_path / "tiny.gguf", seed=1)
    assert resolve_model("tiny.gguf", None, lambda line: None) != first


def test_converted_built_in_model_needs_neither_wheel_nor_gguf_file(home):
    converted = builtin_path(BUILTIN_MODELS["smollm2-135m"])
    converted.mkdir(parents=True)
    assert resolve_model("smollm2-135m", None, lambda line: None) == converted


@pytest.mark.parametrize(
    "name", ["./missing", "/no/such/model", "~/missing", "~no-such-user/model", "a/b/c", "no.gguf", "org/no.gguf", ""]
)
def test_missing_path_is_said(name):
    message = f"there is no such model directory or file: {name}"
    assert refusal(name) == refusal(name, of=fetch_model) == (message, "built in: smollm2-135m")


def test_mistyped_built_in_name_is_not_looked_for_on_the_hub():
    assert refusal("smolm2-135m") == (
        "there is no built-in model of this name: smolm2-135m",
        "did you mean smollm2-135m?",
    )


def test_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    message, hint = refusal("model.safetensors")
    assert message == "not a .gguf file or a model directory: model.safetensors"
    assert hint == "pass the directory that holds config.json"
    message, hint = refusal("pytorch_model.bin")
    assert message == "pickled weights are not loaded, for they can run code: pytorch_model.bin"
    assert "save_pretrained" in hint


@pytest.mark.parametrize("name", ["smollm2-135m", "."])
def test_revision_of_what_has_none_is_refused(name):
    assert refusal(name, "v1") == (f"only a model of the hub has revisions: {name}", "leave --revision out")


def test_finding_a_model_imports_neither_torch_nor_transformers(home):
    converted = builtin_path(BUILTIN_MODELS["smollm2-135m"])
    converted.mkdir(parents=True)
    script = (
        "import sys; from infer.engine.model_source import resolve_model;"
        "print(resolve_model('smollm2-135m', None, print)); assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout == (
        f"{converted}\n"
    )
