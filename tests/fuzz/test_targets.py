"""A few hundred inputs for each target of the fuzzer, the same ones every time; `run.py` goes on from there."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FOLDER = Path(__file__).parent


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FOLDER / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TARGETS = load("targets").TARGETS
mutate = load("mutation").mutate


@pytest.mark.parametrize("name", TARGETS)
def test_target_takes_its_seeds(name):
    target, seeds = TARGETS[name]
    for seed in seeds:
        target(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_target_takes_any_bytes(name):
    target, _ = TARGETS[name]

    @settings(max_examples=30, derandomize=True, deadline=None, database=None)
    @given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
    def check(data: bytes) -> None:
        target(data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_target_takes_changed_seeds(name):
    target, seeds = TARGETS[name]
    generator = random.Random(f"{name}, the quick ones")
    for _ in range(150):
        target(mutate(generator.choice(seeds), generator))


def test_a_target_that_finds_a_fault_says_so():
    """The loops above would prove nothing if targets swallowed everything."""
    gguf_header = TARGETS["gguf_header"][0]
    module = sys.modules[gguf_header.__module__]
    good = module.read_gguf_header

    def broken(path: Path):
        header = good(path)
        return type(header)(
            3, {}, {}, tuple(type(each)(each.name, each.shape, "F32", 1 << 40, 4) for each in header.tensors)
        )

    module.read_gguf_header = broken
    try:
        with pytest.raises(AssertionError):
            gguf_header(TARGETS["gguf_header"][1][0])
    finally:
        module.read_gguf_header = good
