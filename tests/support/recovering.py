"""Engines that are to recover: what is asked of them, and how they are watched."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from faults import num_held
from greedy import make_prompts

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from infer.engine.request import Completion

PROMPTS = [prompt * 2 for prompt in make_prompts(lengths=(1, 4, 9, 16, 21))]
"""Twice, so that there is something to look up for drafts."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True, n=3)
BEAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, beam_width=3, n=2)
HARMLESS = [[token_id % 250 + 4 for token_id in prompt] for prompt in PROMPTS]
"""Without the hostile token, and so short an answer does not come to it."""
SHORT = replace(GREEDY, max_tokens=4)
SCARCE = {"num_blocks": 40, "block_size": 4, "enable_admission_control": False}
SWAP = {**SCARCE, "preemption_mode": "swap", "swap_space": 0.01, "enable_host_cache": True}


def make_engine(folder: Path, **config: Any) -> Engine:
    return Engine(EngineConfig(model=str(folder), dtype="float32", **{"num_blocks": 300, **config}))


def run(engine: Any, prompts: list[list[int]], params: SamplingParams) -> list[Completion]:
    """Every invariant is checked after each step and each recovery."""

    def checked(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            completions = real(*args)
            engine.scheduler.check()
            return completions

        return call

    engine.step, engine.recover = checked(engine.step), checked(engine.recover)
    completions: list[Completion] = engine.generate(prompts, params)
    assert engine.scheduler.kv_cache_manager.pool.num_free_blocks == engine.stats().num_blocks
    return completions


def answers(completions: list[Completion]) -> list[list[tuple[int, ...]]]:
    """Of requests that all have ended well."""
    assert [completion.error for completion in completions] == [None] * len(completions)
    return [[choice.token_ids for choice in completion.choices] for completion in completions]


def at_random(
    engine: Engine, rng: random.Random, share: float
) -> tuple[Callable[[], Exception | None], list[Exception]]:
    """Fails at some of the calls in which there is more than one request to blame."""
    failed: list[Exception] = []

    def fails() -> Exception | None:
        if num_held(engine) < 2 or rng.random() > share:
            return None
        failed.append(RuntimeError("injected"))
        return failed[-1]

    return fails, failed
