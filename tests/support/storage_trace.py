"""What a run has asked of the storage, call by call, with the rows that it held to be saved by then.

Written as it happens, so that it outlives a process that is killed.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infer.io.run_state import RunState

if TYPE_CHECKING:
    from pathlib import Path

CHANGES = frozenset({"open", "lseek", "write", "pwrite", "ftruncate", "fsync", "fdatasync"}) | {
    *("close", "rename", "link", "unlink", "mkdir", "rmdir", "end")
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A call that has succeeded. Paths are text, what was written is cut to what arrived."""

    name: str
    args: tuple[Any, ...]
    result: Any
    saved: frozenset[int]
    """Rows that were told to be saved when the call began."""


class Tracer:
    """To be called with every call."""

    def __init__(self, path: Path) -> None:
        # Unbuffered, and behind the back of what is traced.
        self._file = path.open("wb", buffering=0)
        self._state: RunState | None = None
        begin = RunState.__init__

        def begin_and_note(state: RunState, *args: Any) -> None:
            self._state = state
            state.saved = ()  # type: ignore[assignment]
            begin(state, *args)

        RunState.__init__ = begin_and_note  # type: ignore[method-assign]

    def __call__(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        if isinstance(result, OSError):
            pickle.dump((name, None), self._file)
            return
        if name in ("write", "pwrite"):
            descriptor, data, *rest = args
            args = (descriptor, bytes(data[:result]), *rest)
        plain = tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in args)
        saved = frozenset(() if self._state is None else self._state.saved)
        operation = Operation(name, plain, result, saved) if name in CHANGES else None
        pickle.dump((name, operation), self._file)

    def end(self) -> None:
        """The run has ended well: what it has said by now it has said to the end."""
        self("end", (), None)


def read(path: Path) -> tuple[list[str], list[Operation]]:
    """The names of all calls, and the operations among them that change anything."""
    names, operations = [], []
    if path.exists():
        with path.open("rb") as file:
            while True:
                try:
                    name, operation = pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    break
                if name != "end":
                    names.append(name)
                if operation is not None:
                    operations.append(operation)
    return names, operations
