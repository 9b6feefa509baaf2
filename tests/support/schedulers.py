"""Schedulers without a model: requests of given tokens, steps in which every sampled token is chosen by the test."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from infer.engine.config import EngineConfig
from infer.engine.kv_cache_manager import KVCacheManager
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.engine.scheduler import Scheduler
from infer.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.engine.scheduler_output import SchedulerOutput

_ids = count()


def make_scheduler(num_blocks: int, block_size: int, **config: Any) -> Scheduler:
    settings = EngineConfig(block_size=block_size, **config)
    manager = KVCacheManager(num_blocks, block_size, enable_prefix_caching=settings.enable_prefix_caching)
    return Scheduler(settings, manager)


def make_sequence(prompt: int | list[int], *, max_tokens: int = 16) -> Sequence:
    """A sequence of `prompt` tokens: a list, or so many tokens that no other sequence has."""
    request_id = next(_ids)
    tokens = [1_000_000 * (request_id + 1) + i for i in range(prompt)] if isinstance(prompt, int) else prompt
    return Sequence(Request(request_id, tuple(tokens), SamplingParams(max_tokens=max_tokens)))


def planned(output: SchedulerOutput) -> dict[Sequence, int]:
    """Tokens by sequence of a plan."""
    return {item.sequence: item.num_tokens for item in output.scheduled}


def block_ids(sequence: Sequence) -> list[int]:
    return [block.block_id for block in sequence.block_table]


def run_step(scheduler: Scheduler, sample: Callable[[Sequence], int] = lambda sequence: 7) -> SchedulerOutput:
    """One step, checked before and after; a sequence that has `max_tokens` outputs is finished."""
    output = scheduler.schedule()
    assert output.num_scheduled_tokens <= scheduler.config.max_num_batched_tokens
    assert len(output.scheduled) <= scheduler.config.max_num_seqs
    sampling = [item.sequence for item in output.scheduled if item.samples]
    scheduler.update(output)
    for sequence in sampling:
        sequence.append(sample(sequence))
        if len(sequence.output_token_ids) == sequence.request.sampling_params.max_tokens:
            scheduler.finish(sequence)
    scheduler.check()
    return output
