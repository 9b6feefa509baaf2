"""What the files of an input hold, told by their digests, and that it stays so."""

from __future__ import annotations

import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from infer.io.errors import InputError
from infer.io.readable import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    InputBytes = tuple[str, Callable[[], BinaryIO]]
    """A file's name, and how to open it as it lies on the disk."""


_PIECE_BYTES = 1 << 20


class InputContent:
    """Reads all of `files`, in threads.

    Raises:
        InputError: one cannot be read.
    """

    def __init__(self, files: Sequence[InputBytes]) -> None:
        self._files = files
        self._marks = [_mark(file) for file in files]
        self.digests = _digest_all(files)
        """Of each file its size and sha256, to be shown and compared."""

    def check_unchanged(self) -> None:
        """Returns if the files hold what they held.

        Raises:
            InputError: names one that does not.
        """
        if [_mark(file) for file in self._files] == self._marks:
            return
        for (name, _), old, new in zip(self._files, self.digests, _digest_all(self._files), strict=True):
            if old != new:
                raise InputError(
                    f"the input has changed while the run went on: {name}",
                    "put it back and run the same command again, or begin anew with --restart",
                )


def _digest_all(files: Sequence[InputBytes]) -> list[str]:
    # The digest is computed without the interpreter's lock.
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_digest, files))


def _digest(file: InputBytes) -> str:
    name, open_file = file
    with reading(name), open_file() as stream:
        # Read by hand: a copy of standard input cannot tell its position.
        sha256, num_bytes = hashlib.sha256(), 0
        while piece := stream.read(_PIECE_BYTES):
            sha256.update(piece)
            num_bytes += len(piece)
        return f"{num_bytes:,} bytes, sha256 {sha256.hexdigest()}"


def _mark(file: InputBytes) -> tuple[int, ...]:
    """What nearly always tells that a file is another, without reading it."""
    name, open_file = file
    with reading(name), open_file() as stream:
        try:
            status = os.fstat(stream.fileno())
        except io.UnsupportedOperation:
            # A copy of standard input, which is ours alone.
            return ()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
