"""Models of the hub, from its cache alone: without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from infer.engine.hub import is_hub_id

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FETCH = """
import sys
from infer.engine.errors import ModelError
from infer.engine.hub import fetch_from_hub

try:
    print(fetch_from_hub(sys.argv[1], sys.argv[2] or None, print))
except ModelError as error:
    print(error)
    print(error.hint)
"""


@pytest.fixture
def fetch(tmp_path):
    """What a process without a network prints for a hub id; where the hub's cache is is settled at import."""

    def run(hub_id, revision=""):
        environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-c", FETCH, hub_id, revision]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True)

    return run


@pytest.fixture
def snapshot(tmp_path):
    """A model in the hub's cache."""
    repository = tmp_path / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (snapshot / "model.safetensors").write_bytes(b"")
    return snapshot


@pytest.mark.parametrize("name", ["org/model", "Qwen/Qwen2.5-0.5B_x", "gpt2"])
def test_hub_ids_are_recognised(name):
    assert is_hub_id(name)


@pytest.mark.parametrize("name", ["", "a/b/c", "/a", "a/", "../a", "a b", "a/../b", "https://huggingface.co/a/b"])
def test_other_names_are_no_hub_ids(name):
    assert not is_hub_id(name)


@pytest.mark.parametrize("revision", ["", "main", COMMIT])
def test_cached_snapshot_serves_without_a_network(fetch, snapshot, revision):
    process = fetch("org/tiny", revision)
    assert (process.stdout, process.stderr) == (f"{snapshot}\n", "")


def test_model_that_is_not_cached_is_said_without_a_network(fetch):
    process = fetch("org/other")
    message, hint = process.stdout.splitlines()
    assert message.startswith("org/other is not in the hub's cache and cannot be fetched: ")
    assert (
        hint
        == "check the network and HF_HUB_OFFLINE, or pass a model directory; `infer models list` shows what is here"
    )
    assert process.stderr == ""


def test_config_that_names_code_is_refused(fetch, snapshot):
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama", "auto_map": {}}))
    assert "names code to be loaded with the model, which is never done: 'auto_map'" in fetch("org/tiny").stdout
