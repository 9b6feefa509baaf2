"""Which model it is, told by the digests of its files, before it is loaded."""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from infer.engine.errors import ModelError
from infer.engine.model_files import weight_files
from infer.engine.model_source import resolve_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_TOKENIZER_FILES = re.compile(
    r"tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\..*|merges\.txt|.*\.model|.*\.tiktoken"
)
_TEMPLATE_FILES = re.compile(r"chat_template.*|.*\.jinja")
_SHA256 = re.compile("[0-9a-f]{64}")


def identify_model(name: str, revision: str | None, report: Callable[[str], None]) -> dict[str, object]:
    """The digests of what decides a model's answers: its weights, config, tokenizer and so on, by these names.

    About a second for 2 GB; the model is fetched and converted where it is not on this machine yet.

    Raises:
        ModelError: there is no such model, or it cannot be read.
    """
    directory = resolve_model(name, revision, report)
    try:
        names = sorted(path.name for path in directory.iterdir() if path.is_file())
        groups = {
            "model weights": [path.name for path in weight_files(directory)],
            "model config": ["config.json"],
            "generation config": ["generation_config.json"],
            "tokenizer": [each for each in names if _TOKENIZER_FILES.fullmatch(each)],
            "chat template": [each for each in names if _TEMPLATE_FILES.fullmatch(each)],
        }
        return {group: _digest(directory, (each for each in files if each in names)) for group, files in groups.items()}
    except OSError as error:
        raise ModelError(f"{directory} cannot be read: {error.strerror}") from error


def _digest(directory: Path, names: Iterable[str]) -> str:
    """Of some files, with their names; `none` where there are none."""
    paths = [directory / name for name in names]
    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(_file_digest, paths))
    if not paths:
        return "none"
    if len(paths) == 1:
        return f"sha256 {digests[0]}"
    parts = [[path.name, digest] for path, digest in zip(paths, digests, strict=True)]
    return f"{len(paths)} files, sha256 {hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"


def _file_digest(path: Path) -> str:
    target = path.resolve()
    if target.parent.name == "blobs" and _SHA256.fullmatch(target.name):
        # The hub's cache names a large file by its digest.
        return target.name
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
