"""Greedy output of transformers itself, one prompt at a time: the oracle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from tiny_models import VOCAB_SIZE

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from infer.engine.request import Completion

NUM_TOKENS = 20
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


def make_prompts(seed: int = 0, lengths: tuple[int, ...] = (1, 2, 15, 16, 17, 33, 61, 7)) -> list[list[int]]:
    """Prompts of odd lengths; half of them begin alike."""
    rng = random.Random(seed)
    shared = [rng.randrange(4, VOCAB_SIZE) for _ in range(48)]
    prompts = []
    for number, length in enumerate(lengths):
        own = [rng.randrange(4, VOCAB_SIZE) for _ in range(length)]
        prompts.append([*shared[: length - 1], own[0]] if number % 2 else own)
    return [*prompts, [*shared, 5], [*shared, 6]]


@torch.inference_mode()
def generate_alone(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates from each prompt by itself, with its own attention and cache."""
    model.generation_config.eos_token_id = None
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=1
        )
        outputs.append(output[0, len(prompt) :].tolist())
    return outputs


def generate_ours(folder: Path, prompts: list[list[int]], **config: Any) -> list[list[int]]:
    """What the engine generates from all prompts together."""
    return [list(completion.token_ids) for completion in complete_checked(folder, prompts, GREEDY, **config)]


def complete_checked(folder: Path, prompts: list[list[int]], params: SamplingParams, **config: Any) -> list[Completion]:
    """What an engine makes of all prompts together."""
    return run_checked(Engine(EngineConfig(model=str(folder), dtype="float32", **config)), prompts, params)


def run_checked(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[Completion]:
    """What `engine` makes of all prompts together; every invariant is checked after every step."""
    step = engine.step

    def checked_step() -> Any:
        completions = step()
        engine.scheduler.check()
        return completions

    engine.step = checked_step  # type: ignore[method-assign]
    completions = engine.generate(prompts, params)
    assert [completion.error for completion in completions] == [None] * len(prompts)
    assert engine.scheduler.kv_cache_manager.pool.num_free_blocks == engine.stats().num_blocks
    return completions
