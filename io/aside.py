"""A file that is written aside, and takes its name at once or not at all.

    out.parquet            nothing, or the old file          the complete new file
    .out-1f2e3d4c.tmp      grows                          ---^ renamed when synced

Whatever happens in between, SIGKILL and a power cut included, leaves the left column. Readers of data sets pass over
names that begin with a dot.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from infer.io import storage
from infer.io.errors import OutputExistsError
from infer.io.paths import STANDARD_INPUT, input_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from infer.io.storage import NewFile

_MAX_NAME = 40


def check_name(path: Path, *, inputs: Iterable[str | Path], overwrite: bool) -> None:
    """Returns if `path` may be written, as far as can be told without writing.

    Raises:
        OutputExistsError: the name is taken and `overwrite` is not set, or it is one of `inputs`, by whatever path.
    """
    names = [str(name) for name in inputs if str(name) != STANDARD_INPUT]
    if path.exists() and any(path.samefile(file.path) for file in input_files(names)):
        raise OutputExistsError(f"the output is one of the inputs: {path}", "choose another name")
    if path.exists() and not path.is_file():
        raise OutputExistsError(f"the output is there and no regular file: {path}", "choose another name")
    if path.exists() and not overwrite:
        raise OutputExistsError(f"the output exists: {path}", "replace it with --overwrite")


def new_file(path: Path) -> NewFile:
    """The file beside `path` in which its content grows.

    Raises:
        StorageError: the file system refused.
    """
    return storage.NewFile(path.with_name(f".{path.stem[:_MAX_NAME]}-{secrets.token_hex(4)}.tmp"))
