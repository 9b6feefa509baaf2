"""A call's record reads the same in Python and in compiled code, and hands out every number once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from infer.kernels.cpu.compiler import compile_worker
from infer.kernels.cpu.record import layout_of, take_thread, take_unit
from infer.kernels.cpu.simd import load_int64, store_int64
from infer.kernels.cpu.threads import run


class Mixed(NamedTuple):
    first: int
    factor: float
    second: int
    third: float


class Tally(NamedTuple):
    units: int
    threads: int
    num_units: int


def test_packed_bytes_are_the_record() -> None:
    layout = layout_of(Mixed)
    packed = layout.pack(*Mixed(-5, 0.1, 2**40, -2.5))
    record = np.zeros(1, layout.dtype)
    record.view(np.uint8)[: len(packed)] = np.frombuffer(packed, np.uint8)
    assert record[0]["header"].tolist() == [0] * 128
    assert [record[0][name] for name in Mixed._fields] == [-5, np.float32(0.1), 2**40, np.float32(-2.5)]


def test_threads_share_the_units_of_a_call() -> None:
    def work(call: Any) -> None:
        tally = numba.carray(call, 1)[0]
        thread = tally.threads + 8 * take_thread(tally)
        while True:
            unit = take_unit(tally)
            if unit >= tally.num_units:
                return
            store_int64(load_int64(tally.units + 8 * unit) + 1, tally.units + 8 * unit)
            store_int64(load_int64(thread) + 1, thread)

    worker = compile_worker(work, Tally)
    for _ in range(2):
        units, threads = np.zeros(1000, np.int64), np.zeros(2, np.int64)
        run(worker, Tally(units.ctypes.data, threads.ctypes.data, len(units)), 2)
        assert units.tolist() == [1] * 1000
        assert threads.sum() == 1000
