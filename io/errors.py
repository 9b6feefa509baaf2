"""What can go wrong with files.

    DataError
    |- InputError (ValueError)               the input cannot be used as a whole: missing, unreadable, no such column
    |- OutputNameError (ValueError)          the output's name stands for no format
    |- OutputExistsError (FileExistsError)   the output name is taken, or is the input
    |- FingerprintError (ValueError)         what is saved belongs to another job
    |- LockedError (BlockingIOError)         another run writes the same output
    |- StorageError (OSError)                the disk is full, read-only or failing
    |- StateError (ValueError)               what is saved of a run is damaged
    `- VerificationError (ValueError)        an output is not what was written

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


class FingerprintError(DataError, ValueError):
    """What is saved belongs to another job."""


class LockedError(DataError, BlockingIOError):
    """Another run writes the same output."""


class StorageError(DataError, OSError):
    """The file system refused."""


class StateError(DataError, ValueError):
    """What is saved of a run cannot be used."""


class VerificationError(DataError, ValueError):
    """An output is not what was written."""
