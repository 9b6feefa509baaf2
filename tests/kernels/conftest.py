"""Where the Triton kernels are tested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def triton_device(request: pytest.FixtureRequest) -> str:
    """The CPU for Triton's interpreter, or a GPU to compile for: a process can do one of them (`tests/conftest.py`)."""
    triton = pytest.importorskip("triton")
    device: str = request.param
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if triton.knobs.runtime.interpret != (device == "cpu"):
        pytest.skip("needs TRITON_INTERPRET=1 for the CPU, and 0 for a GPU")
    return device


@pytest.fixture
def _nan_filled() -> Iterator[None]:
    """New tensors hold NaN, or the largest integer, until somebody writes to them."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
