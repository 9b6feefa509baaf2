"""The cache is where the user wants it, and holds things whole or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infer.engine.cache_dir import build_once, cache_dir, compiled_dir
from infer.engine.errors import ModelError

BUILD_SLOWLY = """
import sys, time
from pathlib import Path
from infer.engine.cache_dir import build_once

def build(directory):
    (directory / "first").write_text("1")
    time.sleep(0.3)
    (directory / "second").write_text("2")
    print("built")

print(sorted(path.name for path in build_once(Path(sys.argv[1]), build).iterdir()))
"""
DIE_HALFWAY = """
import os, signal, sys
from pathlib import Path
from infer.engine.cache_dir import build_once

def build(directory):
    (directory / "first").write_text("1")
    os.kill(os.getpid(), signal.SIGKILL)

build_once(Path(sys.argv[1]), build)
"""


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_cache_dir_is_infer_home_then_xdg_then_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("INFER_HOME", "~/models")
    assert cache_dir() == tmp_path / "models"
    monkeypatch.delenv("INFER_HOME")
    assert cache_dir() == Path("/xdg/infer")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / ".cache" / "infer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "infer"


def test_what_is_there_is_not_built_again(tmp_path):
    target = tmp_path / "cache" / "model"
    build_once(target, lambda directory: (directory / "first").write_text("1"))
    build_once(target, lambda directory: (directory / "second").write_text("2"))
    assert names(target) == ["first"]


def test_failed_build_leaves_nothing_but_the_lock(tmp_path):
    def build(directory):
        (directory / "first").write_text("1")
        raise ModelError("no second")

    with pytest.raises(ModelError, match="no second"):
        build_once(tmp_path / "model", build)
    assert names(tmp_path) == [".model.lock"]


def test_killed_build_is_replaced_by_the_next(tmp_path):
    process = subprocess.run([sys.executable, "-c", DIE_HALFWAY, tmp_path / "model"], check=False)
    assert process.returncode == -signal.SIGKILL
    assert names(tmp_path) == [".model.lock", ".model.partial"]
    build_once(tmp_path / "model", lambda directory: (directory / "second").write_text("2"))
    assert names(tmp_path / "model") == ["second"]
    assert names(tmp_path) == [".model.lock", "model"]


def test_of_several_processes_one_builds_and_all_get_it(tmp_path):
    command = [sys.executable, "-c", BUILD_SLOWLY, tmp_path / "model"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = sorted(process.communicate()[0] for process in processes)
    found = "['first', 'second']\n"
    assert outputs == [found, found, f"built\n{found}"]


def test_cache_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError) as caught:
        build_once(tmp_path / "file" / "model", lambda directory: None)
    assert str(caught.value).startswith("the model cache cannot be written: ")
    assert caught.value.hint == "set INFER_HOME to a directory that can be written and has room"


def test_compiled_code_is_kept_where_only_we_can_write(tmp_path, monkeypatch):
    monkeypatch.setenv("INFER_HOME", str(tmp_path / "home"))
    assert compiled_dir() == tmp_path / "home" / "numba"
    assert (tmp_path / "home" / "numba").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
@pytest.mark.parametrize("name", ["home/numba", "home"])
def test_compiled_code_is_not_taken_from_where_others_can_write(tmp_path, monkeypatch, mode, name):
    """What numba keeps is pickled: whoever can put a file there can run code here."""
    monkeypatch.setenv("INFER_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "numba").mkdir(parents=True)
    (tmp_path / name).chmod(mode)
    assert compiled_dir() is None
