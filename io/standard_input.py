"""Standard input, kept so that it can be read more than once."""

from __future__ import annotations

import io
import os
import sys
import weakref
from typing import TYPE_CHECKING

from infer.io.errors import InputError
from infer.io.storage import spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from _typeshed import WriteableBuffer

_PIECE_BYTES = 1 << 20


class StandardInput:
    """A copy of what came in, up to `limit` lines that are not blank. It is given back with the object."""

    name = "<stdin>"
    damage_hint = ""

    def __init__(self, limit: int | None = None) -> None:
        # None where the process was started without one.
        if sys.stdin is None:
            raise InputError("standard input is closed")
        self._descriptor = spool(_pieces(sys.stdin.buffer, limit))
        weakref.finalize(self, os.close, self._descriptor)

    def open(self) -> io.BufferedReader:
        """A new reader, at the beginning."""
        return io.BufferedReader(_Reader(self._descriptor), _PIECE_BYTES)

    open_raw = open


class _Reader(io.RawIOBase):
    """Reads a descriptor from a position of its own, so that readers of one descriptor do not move each other."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = os.pread(self._descriptor, len(view), self._position)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def _pieces(stream: BinaryIO, limit: int | None) -> Iterator[bytes]:
    num_lines = 0
    is_blank = True
    while limit is None or num_lines < limit:
        piece = stream.readline(_PIECE_BYTES)
        if not piece:
            return
        yield piece
        is_blank = is_blank and piece.isspace()
        if piece.endswith(b"\n"):
            num_lines += not is_blank
            is_blank = True
