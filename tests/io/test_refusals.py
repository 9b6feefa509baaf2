"""What a file system refuses is said with the name, the cause and what would help."""

from __future__ import annotations

import errno
import os

import pytest

from infer.io.errors import InputError, StorageError
from infer.io.refusals import refusals, refused

SPACE = "free some space or choose another place"
PLACE = "choose a place that can be written to"
DIRECTORY = "create the directory first"
LOCKS = "this file system has no locks: keep the state elsewhere with --state-dir"


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, SPACE),
        (errno.EDQUOT, SPACE),
        (errno.EROFS, PLACE),
        (errno.EACCES, PLACE),
        (errno.EPERM, PLACE),
        (errno.ENOENT, DIRECTORY),
        (errno.ENOTDIR, DIRECTORY),
        (errno.EIO, "the device is failing; choose another place"),
        (errno.ENOLCK, LOCKS),
        (errno.EOPNOTSUPP, LOCKS),
        (errno.EFBIG, ""),
    ],
)
def test_refusal_names_the_path_the_cause_and_what_helps(number: int, hint: str) -> None:
    error = OSError(number, os.strerror(number))
    with pytest.raises(StorageError) as caught, refusals("write", "a/b"):
        raise error
    assert str(caught.value) == f"cannot write a/b: {os.strerror(number).lower()}"
    assert caught.value.hint == hint
    assert caught.value.__cause__ is error


def test_refusal_without_a_number_says_what_it_says() -> None:
    error = refused("read", "a", OSError("Something Odd"))
    assert (str(error), error.hint) == ("cannot read a: something odd", "")


@pytest.mark.parametrize("error", [StorageError("ours", "hint"), InputError("ours"), ValueError("x")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, refusals("write", "a"):
        raise error
    assert caught.value is error
