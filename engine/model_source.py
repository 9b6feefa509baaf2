"""From what `--model` says to a directory of safetensors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from infer.engine.errors import ModelError
from infer.engine.gguf_convert import convert_gguf, converted_path
from infer.engine.home_dir import expand_home
from infer.engine.hub import fetch_from_hub, is_hub_id
from infer.engine.model_catalog import BUILTIN_MODELS, nearest_builtin
from infer.engine.model_fetch import fetch_builtin
from infer.engine.model_files import refuse_pickle

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.engine.model_catalog import BuiltinModel

_BUILTIN_HINT = f"built in: {', '.join(BUILTIN_MODELS)}"


def resolve_model(name: str, revision: str | None, report: Callable[[str], None]) -> Path:
    """Find a model, fetching and converting it where needed.

    Args:
        name: a directory, a `.gguf` file, a built-in name or a hub id; what exists on this machine comes first.
        revision: branch, tag or commit of a hub id.
        report: told in one line each what takes long.

    Raises:
        ModelError: there is no such model, or it cannot be fetched or converted.
    """
    path = expand_home(name) if name.startswith("~/") else Path(name)
    if name and _exists(path):
        _refuse_revision(name, revision)
        return _resolve_path(path, report)
    if name in BUILTIN_MODELS:
        _refuse_revision(name, revision)
        target = builtin_path(BUILTIN_MODELS[name])
        return target if target.is_dir() else convert_gguf(fetch_model(name, revision, report), target, report)
    return fetch_model(name, revision, report)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # No file could have this name.
        return False


def fetch_model(name: str, revision: str | None, report: Callable[[str], None]) -> Path:
    """Bring a model to this machine as it is: the GGUF file of a built-in one, the snapshot of one of the hub.

    Raises:
        ModelError: there is no such model, or it cannot be fetched.
    """
    if name in BUILTIN_MODELS:
        _refuse_revision(name, revision)
        return fetch_builtin(BUILTIN_MODELS[name], report)
    if name.endswith(".gguf") or not is_hub_id(name):
        raise ModelError(f"there is no such model directory or file: {name}", hint=_BUILTIN_HINT)
    if "/" not in name and (nearest := nearest_builtin(name)):
        raise ModelError(f"there is no built-in model of this name: {name}", hint=f"did you mean {nearest}?")
    return fetch_from_hub(name, revision, report)


def builtin_path(model: BuiltinModel) -> Path:
    """Where the safetensors of a built-in model are, or will be."""
    return converted_path(model.name, model.gguf_sha256)


def _resolve_path(path: Path, report: Callable[[str], None]) -> Path:
    if path.is_dir():
        return path
    if path.suffix == ".gguf":
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return convert_gguf(path, converted_path(path.stem, digest), report)
    refuse_pickle(path)
    raise ModelError(f"not a .gguf file or a model directory: {path}", hint="pass the directory that holds config.json")


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise ModelError(f"only a model of the hub has revisions: {name}", hint="leave --revision out")
