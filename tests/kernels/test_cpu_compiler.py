"""Compiled code is kept for the next process, and never taken for that of other sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
import pytest

from infer.kernels.cpu import compiler
from infer.kernels.cpu.compiler import Worker, compile_worker
from infer.kernels.cpu.simd import store_float, store_int64
from infer.kernels.cpu.threads import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Store(NamedTuple):
    target: int
    factor: float


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    compiler._cache_folder.cache_clear()
    yield tmp_path
    compiler._cache_folder.cache_clear()


def compile_constant(constant: int) -> Worker:
    def work(call: Any) -> None:
        store_int64(constant, numba.carray(call, 1)[0].target)

    return compile_worker(work, Store)


def result_of(worker: Worker) -> int:
    target = np.zeros(1, np.int64)
    run(worker, Store(target.ctypes.data, 0.0), 1)
    return int(target[0])


@pytest.mark.usefixtures("cache")
def test_worker_is_compiled_once_and_then_read_from_disk() -> None:
    first, second = compile_constant(5), compile_constant(5)
    assert (first.code.cache_hits, second.code.cache_hits) == (0, 1)
    assert (result_of(first), result_of(second)) == (5, 5)


@pytest.mark.usefixtures("cache")
def test_worker_with_another_constant_is_other_code() -> None:
    first, second = compile_constant(5), compile_constant(6)
    assert (first.code.cache_hits, second.code.cache_hits) == (0, 0)
    assert (result_of(first), result_of(second)) == (5, 6)


def test_compiled_code_lies_in_a_folder_of_these_sources(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_constant(5)
    (folder,) = cache.iterdir()
    assert folder.name.startswith("cpu-kernels-")
    assert list(folder.rglob("*.nbi"))


def test_worker_is_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(file))
    compiler._cache_folder.cache_clear()
    assert result_of(compile_constant(7)) == 7
    compiler._cache_folder.cache_clear()


@pytest.mark.usefixtures("cache")
def test_worker_reads_floats_as_float32() -> None:
    def work(call: Any) -> None:
        store = numba.carray(call, 1)[0]
        store_float(store.factor, store.target)

    worker = compile_worker(work, Store)
    target = np.zeros(1, np.float32)
    run(worker, Store(target.ctypes.data, 0.1), 1)
    assert target[0] == np.float32(0.1)
