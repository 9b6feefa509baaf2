"""GPUs: what torch sees of them, and whether the kernels for them can be compiled."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from infer.engine.finding import Finding, State

if TYPE_CHECKING:
    from collections.abc import Iterator

_DRIVER = Path("/proc/driver/nvidia/version")
_OLDEST = (8, 0)
"""Compute capability that the Triton kernels need."""


def look_at_gpu() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        if _DRIVER.exists():
            build = (
                "is built without CUDA" if torch.version.cuda is None else f"for CUDA {torch.version.cuda} finds none"
            )
            hint = "pip install a torch for the driver's CUDA version: https://pytorch.org/get-started"
            yield Finding("gpu", State.NOTE, f"there is an NVIDIA driver, but torch {build}", hint)
        else:
            yield Finding("gpu", State.OK, "none: runs are on the CPU", figures={"devices": 0})
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        text = (
            f"cuda:{index} {properties.name}, {properties.total_memory / 2**30:,.0f} GiB, "
            f"compute capability {properties.major}.{properties.minor}, CUDA {torch.version.cuda}"
        )
        figures = {"name": properties.name, "bytes": properties.total_memory, "capability": capability}
        if capability < _OLDEST:
            hint = "runs on it use the reference kernels, which are slow; Ampere and later have the fast ones"
            yield Finding("gpu", State.NOTE, text, hint, figures)
        else:
            yield Finding("gpu", State.OK, text, figures=figures)
    if importlib.util.find_spec("triton") is None:
        yield Finding(
            "triton", State.NOTE, "is not installed: a GPU runs the slow reference kernels", "pip install triton"
        )
    else:
        yield Finding("triton", State.OK, version("triton"), figures={"version": version("triton")})
