"""A malformed input and what the command must make of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DONE, USAGE, ROW_ERRORS, INPUT = 0, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Malformed:
    """`data` gives the content of a file of this name, or writes it where it is too large to be held."""

    name: str
    data: Callable[[], bytes] | Callable[[Path], None]
    codes: tuple[int, ...]
    """The exit codes that are right."""
    places: tuple[int, ...] = ()
    """The lines, or the rows of Parquet, that are in error; checked where the rows can be read."""
    message: str = ""
    """Is in what the command says, or in the error of the first bad row."""
    arguments: tuple[str, ...] = ()
    is_large: bool = False
    """Too slow for the quick tests."""

    def write(self, directory: Path) -> Path:
        path = directory / self.name
        if self.is_large:
            self.data(path)  # type: ignore[call-arg]
        else:
            path.write_bytes(self.data())  # type: ignore[call-arg, arg-type]
        return path


def constant(data: bytes) -> Callable[[], bytes]:
    return lambda: data


def mutated(data: bytes, seed: int, first: int, last: int) -> bytes:
    """`data` with a few bytes between `first` and `last` flipped, set, dropped or put in."""
    generator = random.Random(seed)
    damaged = bytearray(data)
    for _ in range(generator.choice([1, 1, 2, 5])):
        place = generator.randrange(first, min(last, len(damaged)))
        match generator.randrange(5):
            case 0 | 1:
                damaged[place] ^= 1 << generator.randrange(8)
            case 2:
                damaged[place] = generator.randrange(256)
            case 3:
                del damaged[place]
            case 4:
                damaged[place : place + 4] = b"\xff\xff\xff\x7f"
    return bytes(damaged)
