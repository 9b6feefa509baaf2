"""A device gets the fastest implementation that can serve it, and is told why where it is not the one meant for it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from infer.kernels.backend import Backend, select_backend

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def select(device: torch.device, dtype: torch.dtype = torch.float32, preferred: str = "auto") -> Backend:
    return select_backend(device, dtype, head_dim=64, block_size=16, preferred=preferred)


def test_backend_of_a_cpu_is_the_compiled_one() -> None:
    pytest.importorskip("numba")
    backend = select(CPU)
    assert (backend.name, backend.fallback_reason) == ("cpu", None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_backend_of_a_gpu_is_triton() -> None:
    backend = select(CUDA, torch.bfloat16)
    assert (backend.name, backend.fallback_reason) == ("triton", None)


def test_backend_of_any_other_device_is_the_reference() -> None:
    backend = select(torch.device("meta"))
    assert (backend.name, backend.fallback_reason) == ("reference", None)


def test_backend_of_a_cpu_without_numba_is_the_reference_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    backend = select(CPU)
    assert backend.name == "reference"
    assert backend.fallback_reason == "cpu attention cannot be used: numba is not installed"


def test_backend_of_a_gpu_without_triton_is_the_reference_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    backend = select(CUDA)
    assert backend.name == "reference"
    assert backend.fallback_reason == "triton attention cannot be used: triton is not installed"


def test_backend_of_a_dtype_that_triton_does_not_serve_is_the_reference() -> None:
    pytest.importorskip("triton")
    backend = select(CUDA, torch.float64)
    assert backend.name == "reference"
    assert backend.fallback_reason == (
        "triton attention cannot be used: its dtypes are float16, bfloat16 and float32: torch.float64"
    )


@pytest.mark.parametrize(("name", "device"), [("cpu", CPU), ("triton", CUDA)])
def test_backend_of_a_cache_in_a_dtype_that_is_not_served_is_the_reference(name: str, device: torch.device) -> None:
    pytest.importorskip({"cpu": "numba"}.get(name, name))
    backend = select_backend(device, torch.float32, head_dim=64, block_size=16, cache_dtype=torch.float16)
    assert backend.name == "reference"
    assert backend.fallback_reason == (
        f"{name} attention cannot be used: "
        "its caches are of torch.float32, torch.int8 and torch.float8_e4m3fn: torch.float16"
    )


def test_preferred_backend_is_taken_where_it_can_serve() -> None:
    backend = select(CPU, preferred="reference")
    assert (backend.name, backend.fallback_reason) == ("reference", None)


@pytest.mark.parametrize(
    ("device", "preferred", "message"),
    [
        (CPU, "triton", "attention backend triton cannot be used: it serves CUDA tensors only: cpu"),
        (CUDA, "cpu", "attention backend cpu cannot be used: it serves CPU tensors only: cuda"),
        (CPU, "fast", "attention backend must be one of auto, reference, cpu, triton: fast"),
    ],
)
def test_preferred_backend_that_cannot_serve_is_refused(device: torch.device, preferred: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        select(device, preferred=preferred)


def test_backend_imports_only_what_is_selected() -> None:
    program = """
import sys
from infer.kernels.backend import select_backend
heavy = {"torch", "numba", "triton", "infer.kernels.cpu", "infer.kernels.triton", "infer.kernels.reference"}
print(sorted(heavy & sys.modules.keys()))
import torch
select_backend(torch.device("cpu"), torch.float32, head_dim=8, block_size=4, preferred="reference")
print(sorted(heavy & sys.modules.keys()))
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output == "[]\n['infer.kernels.reference', 'torch']\n"
