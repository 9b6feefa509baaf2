"""Which models can be named, and which of them are on this machine already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from infer.engine.cache_dir import converted_dir
from infer.engine.model_catalog import BUILTIN_MODELS
from infer.engine.model_fetch import fetched_path
from infer.engine.model_source import builtin_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from huggingface_hub import CachedRepoInfo

    from infer.engine.model_catalog import BuiltinModel


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model in a list. `license` is None where nothing says it."""

    name: str
    kind: Literal["built-in", "gguf", "hub"]
    state: Literal["to be fetched", "fetched", "ready"]
    """`ready` is safetensors; `fetched` becomes that at the first run."""
    num_bytes: int
    """On this machine, else what is to be fetched."""
    license: str | None
    path: Path | None


def list_models() -> list[KnownModel]:
    """The built-in models, the converted GGUF files, and what the hub's cache holds."""
    return [*map(_builtin, BUILTIN_MODELS.values()), *_converted(), *_from_hub()]


def _builtin(model: BuiltinModel) -> KnownModel:
    ready, fetched = builtin_path(model), fetched_path(model)
    if ready.is_dir():
        return KnownModel(model.name, "built-in", "ready", _num_bytes(ready), model.license, ready)
    if fetched.is_file():
        return KnownModel(model.name, "built-in", "fetched", model.gguf_num_bytes, model.license, fetched)
    return KnownModel(model.name, "built-in", "to be fetched", model.wheel_num_bytes, model.license, None)


def _converted() -> Iterator[KnownModel]:
    builtin = {builtin_path(model) for model in BUILTIN_MODELS.values()}
    for path in sorted(converted_dir().glob("[!.]*")):
        if path not in builtin:
            yield KnownModel(path.name, "gguf", "ready", _num_bytes(path), None, path)


def _from_hub() -> Iterator[KnownModel]:
    # Imported here: the built-in models are found without it.
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type == "model" and _has_safetensors(repository):
            path = Path(repository.repo_path)
            yield KnownModel(repository.repo_id, "hub", "ready", repository.size_on_disk, None, path)


def _has_safetensors(repository: CachedRepoInfo) -> bool:
    return any(file.file_name.endswith(".safetensors") for revision in repository.revisions for file in revision.files)


def _num_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())
