"""How the kernels are compiled: by numba, when first needed, and kept on disk for the next process.

Numba notices a change only in the file of the function it kept, not in the files that function calls into. So what is
kept lies in a folder named by a digest of all sources here: a new version never runs old code.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_type_hints

import numba
import numpy as np
from numba import types
from numba.extending import register_jitable

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Worker:
    """A compiled `void work(record *call)` that any number of threads may run on the same call at once."""

    code: Any
    """Numba's handle, which keeps the machine code alive."""
    record: np.dtype[np.void]

    @property
    def address(self) -> int:
        return int(self.code.address)


def record_of(fields: type[tuple[Any, ...]]) -> np.dtype[np.void]:
    """A named tuple of int and float, as compiled code sees it: int64 and float32."""
    kinds = get_type_hints(fields)
    return np.dtype([(name, np.float32 if kind is float else np.int64) for name, kind in kinds.items()], align=True)


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """A part of a worker. Python can call it, too, unless it uses instructions."""
    options = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    part: Callable[P, T] = register_jitable(**options)(function)
    return part


def compile_worker(work: Callable[[Any], None], record: np.dtype[np.void]) -> Worker:
    """`work` is given a pointer to a `record`. What it closes over are constants of the code."""
    signature = types.void(types.CPointer(numba.from_dtype(record)))
    folder = _cache_folder()
    given = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder or given
    try:
        return Worker(numba.cfunc(signature, cache=folder is not None, error_model="numpy")(work), record)
    finally:
        numba.config.CACHE_DIR = given


@functools.cache
def _cache_folder() -> str | None:
    """Below NUMBA_CACHE_DIR or the user's cache; None where nothing can be kept."""
    given = numba.config.CACHE_DIR
    root = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "infer"
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = root / f"cpu-kernels-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder) if os.access(folder, os.W_OK) else None
