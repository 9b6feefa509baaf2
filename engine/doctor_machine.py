"""Processor, threads and memory: what there is, what of it this process may use, and what a run will take."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from infer.engine.finding import Finding, State
from infer.engine.memory import available_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_FEATURES = (
    *("avx2", "avx512f", "avx512_bf16", "avx_vnni", "avx512_vnni", "amx_bf16", "amx_int8"),
    *("asimd", "sve", "bf16", "i8mm"),
)
"""As Linux names them: of x86, and of ARM."""

_CPUINFO = Path("/proc/cpuinfo")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_LITTLE_MEMORY = 2 << 30


def look_at_processor() -> Iterator[Finding]:
    """Its vector instructions, and the type that a bfloat16 model is run in with them."""
    import torch

    from infer.engine.model_dtype import dtype_name, select_dtype

    name, features = processor(_CPUINFO)
    dtype = dtype_name(select_dtype("auto", torch.bfloat16, torch.device("cpu")))
    found = [each for each in _FEATURES if each in features]
    figures = {"name": name, "features": found, "bfloat16_models_run_in": dtype}
    text = f"{name or platform.machine()}: {', '.join(found) or 'no vector instructions that we know'}"
    yield Finding("processor", State.OK, text, figures=figures)
    if dtype == "float32":
        text = "has no arithmetic in it: a bfloat16 model runs in float32, with twice the memory and half the speed"
        yield Finding("bfloat16", State.NOTE, text, "AVX512-BF16, AMX or ARM's BF16 has it")
    else:
        yield Finding("bfloat16", State.OK, "is multiplied by the processor: bfloat16 models run as they are stored")
    if not {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"} & features:
        yield Finding("int8", State.NOTE, "has no instructions of its own: int8 weights save memory, but no time")


def processor(cpuinfo: Path) -> tuple[str, frozenset[str]]:
    """Its name and features, of the first core; nothing where there is no such file."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return "", frozenset()
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields.get("model name", ""), frozenset(f"{fields.get('flags', '')} {fields.get('Features', '')}".split())


def look_at_threads() -> Iterator[Finding]:
    """Those of torch, on which all kernels run, against the cores that this process may use."""
    import torch

    num_threads, num_cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    num_physical = psutil.cpu_count(logical=False) or num_cores
    quota = cpu_quota(_CPU_QUOTA)
    figures = {"threads": num_threads, "cores": num_cores, "physical_cores": num_physical, "quota": quota}
    most = min(num_cores, num_physical) if quota is None else min(num_cores, num_physical, max(1, int(quota)))
    limit = "" if quota is None else f", a quota of {quota:g}"
    text = f"{num_threads} of torch on {num_cores} cores, {num_physical} of them physical{limit}"
    if num_threads > most:
        hint = f"set OMP_NUM_THREADS={most}: threads without a core of their own make the others wait"
        yield Finding("threads", State.NOTE, text, hint, figures)
    elif num_threads < most:
        yield Finding("threads", State.NOTE, text, f"set OMP_NUM_THREADS={most} to use them all", figures)
    else:
        yield Finding("threads", State.OK, text, figures=figures)


def cpu_quota(cpu_max: Path) -> float | None:
    """Cores' worth of time that a cgroup (v2) allows; None where there is no limit."""
    try:
        quota, period = cpu_max.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def look_at_memory() -> Iterator[Finding]:
    """What is left for weights and cache."""
    import torch

    total, left = psutil.virtual_memory().total, available_bytes(torch.device("cpu"))
    text = f"{left / 2**30:,.1f} GiB are left for weights and cache, of {total / 2**30:,.1f}"
    figures = {"available_bytes": left, "total_bytes": total}
    if left < _LITTLE_MEMORY:
        yield Finding("memory", State.NOTE, text, "a run needs the size of its model and about a gigabyte", figures)
    else:
        yield Finding("memory", State.OK, text, figures=figures)


def look_at_huge_pages() -> Iterator[Finding]:
    """With small pages the cache of KV blocks misses the TLB at every block."""
    try:
        text = _HUGE_PAGES.read_text()
    except OSError:
        return
    mode = huge_page_mode(text)
    if mode == "never":
        hint = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        yield Finding("huge pages", State.NOTE, "never: reads of large tensors wait for the page table", hint)
    else:
        yield Finding("huge pages", State.OK, mode, figures={"mode": mode})


def huge_page_mode(text: str) -> str:
    """`madvise` of `always [madvise] never`."""
    return text.partition("[")[2].partition("]")[0] or text.strip()
