"""The Triton kernels compile for GPUs as they are meant to: nothing spills, all fits, tensor cores do the products, and
nothing of it changes unseen. `tests/support/triton_resources.py` writes the table that is compared with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from triton_aot import Resources
    from triton_resources import Key

triton = pytest.importorskip("triton")
triton_aot = pytest.importorskip("triton_aot")
table = pytest.importorskip("triton_resources")

pytestmark = pytest.mark.skipif(not triton_aot.CUOBJDUMP.exists(), reason="this triton comes without cuobjdump")

SHARED_MEMORY = {80: 99 * 1024, 90: 227 * 1024}
"""Bytes a program may have: the least of compute capability 8.0 to 8.9, and 9.0."""

EVERY = table.every()


@pytest.fixture(scope="module", params=["quick", pytest.param("every", marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest) -> dict[Key, Resources]:
    """Compiled now, in another process: this one interprets Triton."""
    cases = {"quick": table.QUICK, "every": EVERY}[request.param]
    program = Path(__file__).parents[1] / "support" / "triton_resources.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(request.config.cache.mkdir("triton"))
    command = [sys.executable, "-W", "error", str(program), "--cases", json.dumps(cases)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    pairs = [json.loads(line) for line in output.stdout.splitlines()]
    return {tuple(key): triton_aot.Resources(*used) for key, used in pairs}


def test_compiled_kernels_do_not_spill_registers(found: dict[Key, Resources]) -> None:
    assert {key: used.stack for key, used in found.items() if used.stack > 0} == {}


def test_compiled_kernels_fit_into_shared_memory(found: dict[Key, Resources]) -> None:
    assert {key: used.shared for key, used in found.items() if used.shared > SHARED_MEMORY[key[2]]} == {}


def test_compiled_kernels_use_what_the_table_says(found: dict[Key, Resources]) -> None:
    version, expected = table.read_table()
    if version != triton.__version__:
        pytest.skip(f"the table is of triton {version}: {triton.__version__}")
    assert table.differences(expected, found) == [], (
        "python tests/support/triton_resources.py --update, where it is meant"
    )


def test_triton_resources_table_has_every_case() -> None:
    _, expected = table.read_table()
    assert sorted({(case, capability) for case, _, capability in expected}) == sorted(EVERY)


def test_triton_resources_table_has_no_spill() -> None:
    assert {key: used.stack for key, used in table.read_table()[1].items() if used.stack > 0} == {}


def test_compiled_attention_multiplies_on_tensor_cores(found: dict[Key, Resources]) -> None:
    """On Hopper with wgmma, from the 64 rows on that it takes; float32 is exact instead."""
    for (case, kernel, capability), used in found.items():
        if case.startswith(("decode", "prefill")) and "attend" in kernel and "fp32" not in case:
            is_wgmma = capability == 90 and case.startswith("prefill")
            assert (used.wgmma if is_wgmma else used.mma) > 0, (case, kernel, capability, used)


def test_compiled_attention_copies_keys_and_values_16_bytes_at_a_time(found: dict[Key, Resources]) -> None:
    """Scales are copied one by one."""
    for (case, kernel, capability), used in found.items():
        if case.startswith(("decode", "prefill")) and "attend" in kernel:
            assert used.copies > 0, (case, kernel, capability, used)
            if not case.endswith(("int8", "fp8")):
                assert used.small_copies == 0, (case, kernel, capability, used)
