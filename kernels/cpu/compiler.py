"""How the kernels are compiled: by numba, when first needed, and kept on disk for the next process.

Numba notices a change only in the file of the function it kept, not in the files that function calls into. So what is
kept lies in a folder named by a digest of all sources here: a new version never runs old code.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numba
from numba import types
from numba.extending import register_jitable

from infer.kernels.cpu.record import Layout, layout_of

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Worker:
    """A compiled `void work(record *call)` that any number of threads may run on the same call at once."""

    code: Any
    """Numba's handle, which keeps the machine code alive."""
    layout: Layout
    """Of the record."""
    address: int
    function: Callable[[Any], None]
    """The code at `address`, to be called with the record's."""


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """A part of a worker. Python can call it, too, unless it uses instructions."""
    options = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    part: Callable[P, T] = register_jitable(**options)(function)
    return part


def compile_worker(work: Callable[[Any], None], fields: type[tuple[Any, ...]]) -> Worker:
    """`work` is given a pointer to a record of `fields`. What it closes over are constants of the code."""
    layout = layout_of(fields)
    signature = types.void(types.CPointer(numba.from_dtype(layout.dtype)))
    folder = _cache_folder()
    given = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder or given
    try:
        code = numba.cfunc(signature, cache=folder is not None, error_model="numpy")(work)
    finally:
        numba.config.CACHE_DIR = given
    return Worker(code, layout, code.address, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address))


@functools.cache
def _cache_folder() -> str | None:
    """Below NUMBA_CACHE_DIR or the user's cache; None where nothing can be kept."""
    given = numba.config.CACHE_DIR
    try:
        root = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "infer"
    except RuntimeError:  # This user has no home directory.
        return None
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = root / f"cpu-kernels-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder) if os.access(folder, os.W_OK) else None
