"""What goes wrong while reading a file, told as what is wrong with that file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from infer.io.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


class ReadPosition:
    """A file and how far it has been read, as it stands in messages: `a.jsonl.gz after line 12`."""

    __slots__ = ("_name", "_unit", "last")

    def __init__(self, name: object, unit: str) -> None:
        self._name = name
        self._unit = unit
        self.last: int | None = None
        """The last line or row that could be read; None before the first."""

    def __str__(self) -> str:
        return str(self._name) if self.last is None else f"{self._name} after {self._unit} {self.last}"


@contextmanager
def reading(name: object, damage_hint: str = "") -> Iterator[None]:
    """Turns what the file system and Arrow raise inside into an InputError that names the file.

    `damage_hint` is for what is wrong with its content.
    """
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeError) as error:
        strerror = getattr(error, "strerror", None)
        reason = strerror or str(error).partition("\n")[0].rstrip(".")
        # A sentence begins in lower case, an abbreviation does not.
        begin = reason[:1].lower() if reason[1:2].islower() else reason[:1]
        hint = "" if strerror or isinstance(error, UnicodeEncodeError) else damage_hint
        raise InputError(f"cannot read {name}: {begin}{reason[1:]}", hint) from error
