"""What can go wrong with files.

    DataError
    |- InputError (ValueError)           the input cannot be used as a whole: missing, unreadable, no such column
    |- OutputNameError (ValueError)      the output's name stands for no format
    |- OutputExistsError (FileExistsError)   the output name is taken, or is the input
    |- LockedError                       another run is writing this output
    |- VerificationError                 what was written is not what should be there
    `- StorageError (OSError)            the disk is full, read-only or failing

What is wrong with a single row is no exception but data: `RowError` in `row.py`.
"""

from __future__ import annotations


class DataError(Exception):
    """Base of this room. `hint` says what to do, or is empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InputError(DataError, ValueError):
    """The input cannot be used."""


class OutputNameError(DataError, ValueError):
    """The output's name stands for no format."""


class OutputExistsError(DataError, FileExistsError):
    """The output may not be written where it was asked for."""


class LockedError(DataError):
    """Another run is writing this output."""


class VerificationError(DataError):
    """A file is not what the run wrote, or should have written."""


class StorageError(DataError, OSError):
    """The file system refused."""
