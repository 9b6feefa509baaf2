"""A user without a home directory: cron's, a container's."""

from __future__ import annotations

from pathlib import Path

import pytest

from infer.cli.app import main
from infer.engine.cache_dir import cache_dir
from infer.engine.errors import ConfigError
from infer.engine.home_dir import expand_home


@pytest.fixture
def nobody(monkeypatch):
    def getpwuid(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    for name in ("HOME", "INFER_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_home_directory_is_put_for_the_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert expand_home("~/x") == Path("/somewhere/x")
    assert expand_home("x/~") == Path("x/~")


@pytest.mark.usefixtures("nobody")
def test_without_one_the_error_names_the_variables():
    with pytest.raises(ConfigError, match=r"^no home directory is known for: ~/\.cache$") as caught:
        cache_dir()
    assert "INFER_HOME" in caught.value.hint


@pytest.mark.usefixtures("nobody")
def test_without_one_the_variable_is_enough(monkeypatch):
    monkeypatch.setenv("INFER_HOME", "/models")
    assert cache_dir() == Path("/models")


@pytest.mark.usefixtures("nobody")
def test_without_one_commands_that_need_none_work(capsys):
    assert main(["version"]) == 0
    assert main(["models", "list"]) == 2
    assert capsys.readouterr().err.startswith("error: no home directory is known for: ~/.cache\n")
