"""What goes wrong while reading a file, told as what is wrong with that file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from infer.io.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def reading(name: object) -> Iterator[None]:
    """Turns what the file system and Arrow raise inside into an InputError that names the file."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0].rstrip(".")
        # A sentence begins in lower case, an abbreviation does not.
        begin = reason[:1].lower() if reason[1:2].islower() else reason[:1]
        raise InputError(f"cannot read {name}: {begin}{reason[1:]}") from error
