"""The Triton kernels compile for GPUs as they are meant to: nothing spills, all fits, tensor cores do the products."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

SHARED_MEMORY = {80: 99 * 1024, 90: 227 * 1024}
"""Bytes a program may have: the least of compute capability 8.0 to 8.9, and 9.0."""

PARKED = 24
"""Bytes of stack a thread that are no spill: up to six words that ptxas parks from before the loops to behind them, to
have room for one more program beside it. Spills in a loop take tens to thousands."""

FEW = [
    {"kernel": "store", "capability": 90, "head_dim": 128},
    {"kernel": "merge", "capability": 90, "head_dim": 128},
    {"kernel": "decode", "capability": 80, "head_dim": 64, "group_size": 3},
    {"kernel": "decode", "capability": 90, "head_dim": 128, "group_size": 8},
    {"kernel": "prefill", "capability": 80, "head_dim": 128, "group_size": 4},
    {"kernel": "prefill", "capability": 90, "head_dim": 128, "group_size": 4},
    {"kernel": "store", "capability": 80, "head_dim": 128, "cache_dtype": "fp8"},
    {"kernel": "decode", "capability": 80, "head_dim": 128, "group_size": 8, "cache_dtype": "fp8"},
    {"kernel": "prefill", "capability": 90, "head_dim": 128, "group_size": 4, "cache_dtype": "int8"},
]

SIZES = [
    *({"head_dim": head_dim, "group_size": group_size} for head_dim, group_size in product((64, 128), (1, 3, 4, 8))),
    *({"head_dim": head_dim, "group_size": 4} for head_dim in (80, 96, 256)),
    *({"head_dim": head_dim, "group_size": 4, "dtype": "fp32"} for head_dim in (64, 128, 256)),
    {"head_dim": 192, "value_head_dim": 128},
    {"head_dim": 256, "group_size": 2, "softcap": 50.0, "sliding_window": 4096},
    {"head_dim": 64, "group_size": 8, "has_sinks": True, "sliding_window": 128},
    {"head_dim": 128, "group_size": 4, "sliding_window": 4096},
    *(
        {"head_dim": head_dim, "group_size": 4, "cache_dtype": cache_dtype}
        for head_dim, cache_dtype in product((64, 128, 256), ("int8", "fp8"))
    ),
]

ALL = [
    *(
        {"kernel": kernel, "capability": capability} | sizes
        for kernel, capability, sizes in product(("decode", "prefill"), (80, 90), SIZES)
    ),
    *(
        {"kernel": "prefill", "capability": capability, "max_query_len": 8} | sizes
        for capability, sizes in product((80, 90), SIZES)
    ),
    *(
        {"kernel": kernel, "capability": capability, "head_dim": head_dim}
        for kernel, capability, head_dim in product(("store", "merge"), (80, 90), (64, 128))
    ),
    *(
        {"kernel": "store", "capability": capability, "head_dim": 128, "cache_dtype": cache_dtype}
        for capability, cache_dtype in product((80, 90), ("int8", "fp8"))
    ),
]


@dataclass(frozen=True, slots=True)
class Compiled:
    case: dict[str, Any]
    usage: dict[str, int]


@pytest.fixture(scope="module", params=["few", pytest.param("all", marks=pytest.mark.slow)])
def compiled(request: pytest.FixtureRequest) -> list[Compiled]:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        pytest.skip("triton is not installed")
    if not (Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump").exists():
        pytest.skip("this build of triton comes without cuobjdump")
    cases = {"few": FEW, "all": ALL}[request.param]
    program = Path(__file__).parents[1] / "support" / "compile_kernels.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(request.config.cache.mkdir("triton"))
    command = [sys.executable, "-W", "error", str(program), json.dumps(cases)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    usages = [json.loads(line) for line in output.stdout.splitlines()]
    for case, usage in zip(cases, usages, strict=True):
        print(" ".join(f"{name}={value}" for name, value in (case | usage).items()))
    return [Compiled(case, usage) for case, usage in zip(cases, usages, strict=True)]


def test_compiled_kernels_do_not_spill_registers(compiled: list[Compiled]) -> None:
    assert [kernel for kernel in compiled if kernel.usage["stack"] > PARKED] == []


def test_compiled_kernels_fit_into_shared_memory(compiled: list[Compiled]) -> None:
    too_large = [kernel for kernel in compiled if kernel.usage["shared"] > SHARED_MEMORY[kernel.case["capability"]]]
    assert too_large == []


def test_compiled_attention_multiplies_on_tensor_cores(compiled: list[Compiled]) -> None:
    """On Hopper with wgmma, from the 64 rows on that it takes; float32 is exact instead."""
    for kernel in compiled:
        case = kernel.case
        if case["kernel"] in ("decode", "prefill") and case.get("dtype") != "fp32":
            num_rows = case.get("max_query_len", 2048) * case.get("group_size", 1)
            is_large = case["kernel"] == "prefill" and num_rows >= 64
            instruction = "wgmma" if case["capability"] == 90 and is_large else "mma"
            assert kernel.usage[instruction] > 0, kernel


def test_compiled_attention_copies_keys_and_values_16_bytes_at_a_time(compiled: list[Compiled]) -> None:
    """Scales are copied one by one."""
    for kernel in compiled:
        if kernel.case["kernel"] in ("decode", "prefill"):
            assert kernel.usage["wide_copies"] > 0, kernel
            if "cache_dtype" not in kernel.case:
                assert kernel.usage["narrow_copies"] == 0, kernel
