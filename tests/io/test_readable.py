"""What went wrong with a file, as one message of one kind."""

from __future__ import annotations

import errno
import os

import pyarrow as pa
import pytest

from infer.io.errors import InputError
from infer.io.readable import ReadPosition, reading


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "permission denied", ""),
        (OSError(errno.EIO, os.strerror(errno.EIO)), "input/output error", ""),
        (OSError("Truncated compressed stream."), "truncated compressed stream", "again"),
        (pa.ArrowInvalid("Not a file\nat a place in C++"), "not a file", "again"),
        (pa.ArrowNotImplementedError("ZSTD is missing"), "ZSTD is missing", "again"),
    ],
)
def test_reading_names_the_file_and_says_what_to_do_about_its_content(
    error: Exception, message: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught, reading("a.jsonl", "again"):
        raise error
    assert (str(caught.value), caught.value.hint) == (f"cannot read a.jsonl: {message}", hint)


def test_reading_lets_our_own_errors_pass() -> None:
    with pytest.raises(InputError, match=r"^as it was$"), reading("a.jsonl"):
        raise InputError("as it was")
    with pytest.raises(ZeroDivisionError), reading("a.jsonl"):
        raise ZeroDivisionError


def test_position_is_the_file_and_what_was_read_of_it() -> None:
    position = ReadPosition("a.jsonl", "line")
    assert str(position) == "a.jsonl"
    position.last = 7
    assert str(position) == "a.jsonl after line 7"
