"""Where fetched and converted models are kept, and how something gets there whole or not at all.

$INFER_HOME, else $XDG_CACHE_HOME/infer, else ~/.cache/infer
|- gguf/<name>-<digest>/       a built-in model as it was fetched
`- models/<name>-<digest>-<n>/ safetensors made from a GGUF file, n the version of the conversion
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from infer.engine.errors import ModelError
from infer.engine.home_dir import expand_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def cache_dir() -> Path:
    """The root; it need not exist yet.

    Raises:
        ConfigError: there is neither a variable nor a home directory to put it.
    """
    if home := os.environ.get("INFER_HOME"):
        return expand_home(home).absolute()
    # The XDG specification has a relative path ignored.
    xdg_home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg_home if xdg_home.is_absolute() else expand_home("~/.cache")) / "infer"


def gguf_dir() -> Path:
    return cache_dir() / "gguf"


def converted_dir() -> Path:
    return cache_dir() / "models"


def compiled_dir() -> Path | None:
    """Where numba may keep the machine code that it compiles; None where somebody else could put other code there."""
    path = cache_dir() / "numba"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        places = [path.resolve(), *path.resolve().parents]
        return path if all(map(_is_ours, places)) else None
    except OSError:
        return None


def _is_ours(directory: Path) -> bool:
    """Whether nobody but us and root can replace what is in a directory: in one like /tmp each can their own only."""
    status = directory.stat()
    is_writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    return status.st_uid in (os.geteuid(), 0) and not is_writable


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return the directory `target`, filled by `build` if it is not there yet.

    `build` is given an empty directory beside it, which is renamed when it is complete. One process builds, others that
    want the same wait for it. What a killed process left is removed by the next one.

    Raises:
        ModelError: the cache cannot be written; whatever `build` raises passes through.
    """
    if target.is_dir():
        return target
    aside = target.parent / f".{target.name}.partial"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(target.parent / f".{target.name}.lock"):
            if target.is_dir():
                return target
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            try:
                build(aside)
                _sync(aside)
                aside.rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"the model cache cannot be written: {error}",
            hint="set INFER_HOME to a directory that can be written and has room",
        ) from error
    return target


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file until the block ends; the system releases it when the process dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sync(directory: Path) -> None:
    """Put the files on the disk, so that no crash after the rename leaves a complete name on incomplete content."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
