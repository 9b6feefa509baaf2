"""The libraries that a run cannot do without, and the place for models and compiled kernels."""

from __future__ import annotations

import importlib
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from infer.engine.cache_dir import cache_dir, compiled_dir
from infer.engine.errors import ConfigError
from infer.engine.finding import Finding, State

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "pyarrow")
_ROOM_FOR_A_MODEL = 20 << 30


def look_at_libraries() -> Iterator[Finding]:
    """Whether they can be imported: a broken build shows only then."""
    versions: dict[str, str] = {}
    for name in _NEEDED:
        try:
            importlib.import_module(name)
            versions[name] = version(name)
        except (ImportError, OSError, PackageNotFoundError) as error:
            yield Finding("libraries", State.BROKEN, f"{name} cannot be imported: {error}", "install infer-batch again")
    if len(versions) == len(_NEEDED):
        text = ", ".join(f"{name} {number}" for name, number in versions.items())
        yield Finding("libraries", State.OK, text, figures=versions)


def look_at_cache() -> Iterator[Finding]:
    """Where models are fetched to, and where compiled kernels are kept."""
    try:
        folder = cache_dir()
    except ConfigError as error:
        yield Finding("models", State.NOTE, str(error), error.hint)
        return
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        hint = "set INFER_HOME to a directory that can be written, or run models that lie on the disk already"
        yield Finding("models", State.NOTE, f"no model can be fetched, the cache cannot be written: {folder}", hint)
    else:
        free = shutil.disk_usage(existing).free
        is_short = free < _ROOM_FOR_A_MODEL
        yield Finding(
            "models",
            State.NOTE if is_short else State.OK,
            f"{free / 2**30:,.0f} GiB free for models: {folder}",
            "a model of 8 billion parameters takes 16 GB" if is_short else "",
            {"cache": str(folder), "free_bytes": free},
        )
    yield _compiled_kernels()


def _compiled_kernels() -> Finding:
    given = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(given) if given else compiled_dir()
    if folder is None or not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        hint = "set NUMBA_CACHE_DIR or INFER_HOME to a directory that only you can write"
        return Finding("compiled kernels", State.NOTE, "nowhere to keep them: each process compiles anew", hint)
    return Finding("compiled kernels", State.OK, f"are kept: {folder}", figures={"folder": str(folder)})
