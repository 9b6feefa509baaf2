"""JSON files of a checkpoint, read by us before anybody acts on them: bounded, and with one meaning."""

from __future__ import annotations

import json
import stat
from collections import Counter
from typing import TYPE_CHECKING, Any

from infer.engine.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES = 256 << 20
"""The longest there are hold a vocabulary, or name each tensor of a large model."""


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a file.

    Raises:
        FileNotFoundError: there is no such file.
        ModelError: it is no regular file, too large, no JSON object, or names a key twice: readers of JSON differ in
            which of the two counts.
    """
    try:
        status = path.stat()
        # A pipe or a device would be read for ever.
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path} is no regular file")
        if status.st_size > _MAX_BYTES:
            raise ModelError(f"{path} has {status.st_size:,} bytes, at most {_MAX_BYTES:,} are read")
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is no JSON object but a {type(content).__name__}")
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r:.80} is there twice")
    return content
