"""What this machine has for a run, what is missing, and what that costs. Each look is on its own: one that fails is a
finding itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.doctor_gpu import look_at_gpu
from infer.engine.doctor_kernels import look_at_kernels
from infer.engine.doctor_machine import look_at_huge_pages, look_at_memory, look_at_processor, look_at_threads
from infer.engine.doctor_software import look_at_cache, look_at_libraries
from infer.engine.errors import describe
from infer.engine.finding import Finding, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOKS: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
    ("libraries", look_at_libraries),
    ("processor", look_at_processor),
    ("threads", look_at_threads),
    ("memory", look_at_memory),
    ("huge pages", look_at_huge_pages),
    ("kernels", look_at_kernels),
    ("gpu", look_at_gpu),
    ("cache", look_at_cache),
)


def examine() -> Iterator[Finding]:
    """All findings, as they are made; the kernels take some seconds."""
    for subject, look in _LOOKS:
        try:
            yield from look()
        except Exception as error:
            yield Finding(subject, State.NOTE, f"could not be looked at: {describe(error)}")
