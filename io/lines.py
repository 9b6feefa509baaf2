"""Physical lines of a file: bytes that end with `\\n`, whatever stands between.

Text readers also split at U+2028, U+0085 and others, which may stand inside a JSON string.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

MAX_LINE_BYTES = 16 << 20
"""A longer line is no row: a file without line ends must not end up in memory as one."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank."""

    number: int
    """Its place in the file, counted from 1 with the blank lines."""
    end: int
    """Bytes of the file up to and with its line end."""
    text: bytes | None
    """None where the line is longer than `MAX_LINE_BYTES`."""


def read_lines(stream: BinaryIO, num_bytes: int | None = None) -> Iterator[Line]:
    """The lines of `stream` that are not blank, of its first `num_bytes` bytes or of all."""
    number = end = 0
    while num_bytes is None or end < num_bytes:
        text = stream.readline(MAX_LINE_BYTES + 1)
        if not text:
            return
        number += 1
        end += len(text)
        is_too_long = len(text) > MAX_LINE_BYTES and not text.endswith(b"\n")
        while is_too_long and text and not text.endswith(b"\n"):
            text = stream.readline(MAX_LINE_BYTES)
            end += len(text)
        if num_bytes is not None and end > num_bytes:
            # The file has grown: what was its last line is longer now.
            text = text[: len(text) - (end - num_bytes)]
        if number == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        if is_too_long:
            yield Line(number, end, None)
        elif text and not text.isspace():
            yield Line(number, end, text)
