"""A file that is written aside, and takes its name at once or not at all.

    out.parquet            nothing, or the old file          the complete new file
    .out-1f2e3d4c.tmp      grows                          ---^ renamed when synced

Whatever happens in between, SIGKILL and a power cut included, leaves the left column. Readers of data sets pass over
names that begin with a dot.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from infer.io import storage
from infer.io.errors import OutputExistsError, StorageError
from infer.io.paths import STANDARD_INPUT, input_files
from infer.io.refusals import refusals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infer.io.storage import NewFile

MAX_ASIDE_NAME = 40
"""Characters of its own name that a file keeps while it is aside."""


def check_inputs(path: Path, inputs: Iterable[str | Path]) -> None:
    """Returns if `path` is none of `inputs`.

    Raises:
        OutputExistsError: it is one of them, by whatever path.
    """
    names = [str(name) for name in inputs if str(name) != STANDARD_INPUT]
    with refusals("write", path):
        if path.exists() and any(path.samefile(file.path) for file in input_files(names)):
            raise OutputExistsError(f"the output is one of the inputs: {path}", "choose another name")


def check_name(path: Path, *, overwrite: bool) -> None:
    """Returns if `path` may be written, as far as can be told without writing.

    Raises:
        OutputExistsError: the name is taken and `overwrite` is not set, or by what is no file.
    """
    with refusals("write", path):
        if not path.exists():
            return
        if not path.is_file():
            raise OutputExistsError(f"the output is there and no regular file: {path}", "choose another name")
    if not overwrite:
        raise OutputExistsError(f"the output exists: {path}", "replace it with --overwrite")


def resolved(path: str | Path) -> Path:
    """Through links: what is replaced is the file, not a link to it.

    Raises:
        StorageError: links that lead to themselves, or another name that cannot be.
    """
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError) as error:
        raise StorageError(f"cannot write {path}: {error}") from error


def publish(file: NewFile, path: Path, *, overwrite: bool) -> None:
    """Give a file that is complete and synced its name.

    Raises:
        OutputExistsError: the name was taken meanwhile; the file is kept beside it, under a name that is said.
        StorageError: the file system refused.
    """
    try:
        storage.rename(file.path, path, replace=overwrite)
    except FileExistsError as error:
        kept = path.with_name(f"{path.stem}-{secrets.token_hex(4)}{path.suffix}")
        storage.rename(file.path, kept, replace=True)
        raise OutputExistsError(
            f"the output has appeared while the run went on: {path}", f"what was computed is in {kept}"
        ) from error


def new_file(path: Path) -> NewFile:
    """The file beside `path` in which its content grows.

    Raises:
        StorageError: the file system refused.
    """
    return storage.NewFile(path.with_name(f".{path.stem[:MAX_ASIDE_NAME]}-{secrets.token_hex(4)}.tmp"))
