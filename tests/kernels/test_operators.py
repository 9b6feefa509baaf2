from __future__ import annotations

import importlib
import inspect
import pkgutil
from contextlib import contextmanager

from infer import kernels
from infer.kernels.operators import OPERATORS, Work, observed, operator


class Log:
    def __init__(self):
        self.entries = []

    @contextmanager
    def operator(self, name, work):
        self.entries.append((name, work))
        yield
        self.entries.append(name)


@operator(Work.OTHER)
def outer(value, *, factor):
    return inner(value) * factor


@operator(Work.GEMM)
def inner(value):
    """What it does."""
    return value + 1


def test_operator_is_the_function_that_it_marks():
    assert outer(1, factor=3) == 6
    assert (inner.__name__, inner.__doc__) == ("inner", "What it does.")
    assert OPERATORS["inner"] is Work.GEMM


def test_observer_hears_of_calls_and_of_calls_in_them_until_its_block_ends():
    log = Log()
    with observed(log):
        assert outer(1, factor=3) == 6
    outer(1, factor=3)
    assert log.entries == [("outer", Work.OTHER), ("inner", Work.GEMM), "inner", "outer"]


def test_every_public_operator_says_what_its_time_counts_as():
    names = [module.name for module in pkgutil.iter_modules(kernels.__path__, "infer.kernels.") if not module.ispkg]
    public = {
        name
        for module in map(importlib.import_module, names)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and "backend" in inspect.signature(function).parameters
    }
    assert {"paged_attention", "rms_norm", "store_kv"} <= public
    assert public <= OPERATORS.keys()
