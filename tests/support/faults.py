"""Exceptions inside an engine's step, at places and times that a test chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.engine.engine import Engine

PLACES = (
    *("draft", "schedule", "copy_before", "execute", "copy_after"),
    *("sample", "update", "commit", "accept", "observe"),
)
"""Of a step, in their order."""


def owner_and_name(engine: Engine, place: str) -> tuple[Any, str]:
    scheduler = engine.scheduler
    return {
        "draft": (engine._speculation, "propose"),
        "schedule": (scheduler, "schedule"),
        "copy_before": (engine._executor.runner, "copy_before"),
        "execute": (engine._executor.runner, "execute"),
        "copy_after": (engine._executor.runner, "copy_after"),
        "sample": (engine._sampler, "sample"),
        "update": (scheduler, "update"),
        "commit": (scheduler.kv_cache_manager, "commit"),
        "accept": (engine._requests, "accept"),
        "observe": (engine._speculation, "observe"),
    }[place]


def inject(engine: Engine, place: str, fails: Callable[[], Exception | None], *, after: bool = False) -> None:
    """Before or after `place` has done its work, raise what `fails` returns."""
    owner, name = owner_and_name(engine, place)
    real = getattr(owner, name)

    def faulty(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs) if after else None
        error = fails()
        if error is not None:
            raise error
        return result if after else real(*args, **kwargs)

    setattr(owner, name, faulty)


def num_held(engine: Engine) -> int:
    """Requests of which one may be to blame if the step fails now."""
    return len(engine.recovery.held())
