"""The digest that a Parquet file carries of itself: whatever bit of it changes, the file alone tells.

    PAR1  pages ...  footer( ... infer.sha256 = <64 hexadecimal digits> ... )  length  PAR1

The digits are the sha256 of the whole file, with zeros in their own place. They are looked up as bytes, and the file is
hashed, before anything parses it: a damaged footer can take a parser anywhere.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

    from infer.io.storage import NewFile

SEAL_KEY = "infer.sha256"
BLANK_SEAL = "0" * 64
"""What is written first: the digest is known when all has been written."""

_DIGITS = frozenset(b"0123456789abcdef")
# A key and the head of its value as Thrift's compact protocol has them in the footer: field 2, a string, 64 bytes long.
_MARK = SEAL_KEY.encode() + b"\x18\x40"
_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_MAX_SEARCHED_BYTES = 64 << 20
_READ_BYTES = 1 << 20


class SealedSink:
    """What a Parquet writer writes to: hands everything on to `file`, and keeps the footer to find the seal in it."""

    closed = False
    """pyarrow asks every file for it."""

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._footer: bytearray | None = None
        self._footer_start = 0

    def write(self, data: bytes) -> int:
        if self._footer is not None:
            self._footer += data
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def begin_footer(self) -> None:
        """What comes from here on is the footer, which has a blank seal."""
        self._footer = bytearray()
        self._footer_start = self._file.tell()

    def seal(self) -> str:
        """Put the digest of all that was written into its place, and return it."""
        assert self._footer is not None
        position = _find_digits(self._footer)
        assert position is not None, f"no place for the seal in the footer of {self._file.path}"
        assert self._footer[position : position + 64] == BLANK_SEAL.encode(), bytes(self._footer[position:])
        digest = self._file.hexdigest()
        self._file.patch(self._footer_start + position, digest.encode())
        return digest


def check_seal(path: Path) -> tuple[str | None, str]:
    """The digest that the file at `path` carries, and what is wrong with it: nothing where that is empty.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        offset = _find_in_file(file, num_bytes)
        if isinstance(offset, str):
            return None, offset
        file.seek(offset)
        carried = file.read(64)
        if len(carried) < 64 or not _DIGITS.issuperset(carried):
            return None, "what stands in the place of the digest is none"
        found = file_digest(file, blank_at=offset)
    if found.encode() != carried:
        return carried.decode(), f"the bytes of the file have changed: their sha256 is {found}"
    return found, ""


def file_digest(file: FileIO, *, blank_at: int | None = None) -> str:
    """The sha256 of the whole of `file`; of a sealed one with zeros in the place of its seal."""
    digest = hashlib.sha256()
    file.seek(0)
    buffer = bytearray(_READ_BYTES)
    start = 0
    while num_read := file.readinto(buffer):
        if blank_at is not None:
            first, last = max(blank_at, start), min(blank_at + 64, start + num_read)
            if first < last:
                buffer[first - start : last - start] = b"0" * (last - first)
        digest.update(memoryview(buffer)[:num_read])
        start += num_read
    return digest.hexdigest()


def _find_in_file(file: FileIO, num_bytes: int) -> int | str:
    """Where the digits stand in a file, or why that cannot be told."""
    if num_bytes < len(_MAGIC) + _TAIL_BYTES:
        return f"the file is too short to be Parquet: {num_bytes} bytes"
    if file.read(len(_MAGIC)) != _MAGIC:
        return "the file does not begin as Parquet does"
    file.seek(num_bytes - _TAIL_BYTES)
    tail = file.read(_TAIL_BYTES)
    if tail[4:] != _MAGIC:
        return "the file does not end as Parquet does: it was cut off, or something was added"
    footer_bytes = int.from_bytes(tail[:4], "little")
    if footer_bytes > num_bytes - len(_MAGIC) - _TAIL_BYTES:
        return f"the footer is said to be longer than the file: {footer_bytes} bytes"
    # What is not searched, of a longer footer, is the places of the column chunks: keys and values come after them.
    searched = min(footer_bytes, _MAX_SEARCHED_BYTES)
    start = num_bytes - _TAIL_BYTES - searched
    file.seek(start)
    position = _find_digits(file.read(searched))
    return (
        "the footer carries no digest of the file: it is damaged, or infer has not written it"
        if position is None
        else start + position
    )


def _find_digits(footer: bytes | bytearray) -> int | None:
    # The last one: names of columns come before the keys and values, and may be anything.
    position = footer.rfind(_MARK)
    return None if position < 0 else position + len(_MARK)
