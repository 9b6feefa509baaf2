"""What the project's Triton kernels become for a GPU, compiled ahead of time where there is none.

The operators are called as the engine calls them, on tensors of the `meta` device, which have shapes and no memory;
each launch is compiled for the constants, types, divisors and options that it is made with, and not made. So what is
looked at is what a GPU would run, and an operator that asks the device for a value, which would wait for it, fails.

For a process without `TRITON_INTERPRET`: one process can either interpret or compile.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

if TYPE_CHECKING:
    from collections.abc import Callable

    from triton.compiler import CompiledKernel

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel uses, and how often some instructions stand in its PTX."""

    warps: int
    registers: int
    """A thread."""
    stack: int
    """Bytes a thread; all of it is spilled registers."""
    shared: int
    """Bytes a program."""
    wgmma: int
    mma: int
    copies: int
    """cp.async of 16 bytes, from global to shared memory beside the arithmetic."""
    small_copies: int
    """cp.async of fewer bytes."""


def compile_launches(
    operator: Callable[[], object], capability: int, is_wanted: Callable[[str], bool] = lambda kernel: True
) -> dict[str, Resources]:
    """Of each kernel that `operator` launches, by the kernel's name, and a number for each further
    variant. `capability` is 80 for sm_80, ..."""
    return {name: resources(kernel) for name, kernel in _record(operator, capability, is_wanted).items()}


def resources(kernel: CompiledKernel) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        command = [str(CUOBJDUMP), "-res-usage", cubin.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ptx = kernel.asm["ptx"]
    return Resources(
        warps=kernel.metadata.num_warps,
        registers=int(re.findall(r"REG:(\d+)", listing)[0]),
        stack=int(re.findall(r"STACK:(\d+)", listing)[0]),
        shared=kernel.metadata.shared,
        wgmma=ptx.count("wgmma.mma_async"),
        mma=ptx.count("mma.sync"),
        copies=ptx.count("cp.async.cg"),
        small_copies=ptx.count("cp.async.ca"),
    )


class _NoDevice:
    """Stands for Triton's driver: says what to compile for, and has nothing to run it on."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        """Kernels are kept by device, and each target needs its own."""
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0


def _record(
    operator: Callable[[], object], capability: int, is_wanted: Callable[[str], bool]
) -> dict[str, CompiledKernel]:
    """Compiles what `operator` launches, in place of launching it."""
    kernels: dict[str, CompiledKernel] = {}
    run = JITFunction.run

    def compile_only(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> CompiledKernel | None:
        if not is_wanted(function.__name__):
            return None
        kernel = run(function, *args, grid=grid, warmup=True, **options)
        if kernel not in kernels.values():
            number = sum(name.split()[0] == function.__name__ for name in kernels)
            kernels[f"{function.__name__} {number + 1}" if number else function.__name__] = kernel
        return kernel

    driver.set_active(_NoDevice(capability))
    JITFunction.run = compile_only
    try:
        operator()
    finally:
        JITFunction.run = run
    return kernels
