"""exp2 and tanh of the CPU kernels are as exact as float32 lets them be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from infer.kernels.cpu.compiler import Worker, compile_worker
from infer.kernels.cpu.simd import exp2, load, store, tanh
from infer.kernels.cpu.threads import run

SPECIAL = np.float32([np.nan, -np.inf, -0.0, 0.0])


class Map(NamedTuple):
    source: int
    target: int
    num_bytes: int


def apply(worker: Worker, source: np.ndarray) -> np.ndarray:
    padded = np.resize(source, -(-len(source) // 16) * 16).astype(np.float32)
    target = np.full_like(padded, np.nan)
    call = Map(padded.ctypes.data, target.ctypes.data, padded.nbytes)
    run(worker, call, 1)
    return target[: len(source)]


@pytest.fixture(scope="module")
def exp2_worker() -> Worker:
    def work(call: Any) -> None:
        job = numba.carray(call, 1)[0]
        for offset in range(0, job.num_bytes, 64):
            store(exp2(load(job.source + offset)), job.target + offset)

    return compile_worker(work, Map)


@pytest.fixture(scope="module")
def tanh_worker() -> Worker:
    def work(call: Any) -> None:
        job = numba.carray(call, 1)[0]
        for offset in range(0, job.num_bytes, 64):
            store(tanh(load(job.source + offset)), job.target + offset)

    return compile_worker(work, Map)


def test_exp2_is_within_two_units_in_the_last_place(exp2_worker) -> None:
    x = np.concatenate([np.linspace(-126, 127, 100_003), np.linspace(-1, 1, 10_001)]).astype(np.float32)
    expected = np.exp2(x.astype(np.float64))
    assert np.abs(apply(exp2_worker, x) / expected - 1).max() < 2 * 2**-23


def test_exp2_of_what_is_too_low_is_zero(exp2_worker) -> None:
    assert apply(exp2_worker, np.float32([-126.5, -200.0, -3e38, -np.inf])).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_exp2_keeps_nan(exp2_worker) -> None:
    assert np.isnan(apply(exp2_worker, np.float32([np.nan]))).all()


def test_tanh_is_within_four_units_in_the_last_place(tanh_worker) -> None:
    magnitudes = np.concatenate([np.logspace(-30, 1, 20_001), np.linspace(0.001, 20, 100_003)])
    x = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    expected = np.tanh(x.astype(np.float64))
    assert np.abs(apply(tanh_worker, x) / expected - 1).max() < 4 * 2**-23


def test_tanh_of_infinity_and_nan(tanh_worker) -> None:
    np.testing.assert_equal(apply(tanh_worker, np.float32([np.inf, -np.inf, np.nan])), np.float32([1.0, -1.0, np.nan]))
