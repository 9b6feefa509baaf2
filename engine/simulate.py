"""The scheduler without a model: the same plans, blocks and preemptions, with a cost model in the model's place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from infer.engine.cache_tiers import make_cache_manager
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.engine.scheduler import Scheduler
from infer.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from infer.engine.config import EngineConfig
    from infer.engine.cost_model import CostModel
    from infer.engine.scheduler_output import SchedulerOutput

_WAITING_PER_SEQUENCE = 4
"""Requests that are held ready for each sequence of a step, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A prompt, and how many tokens its answer will have, which the scheduler does not know."""

    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int
    max_tokens: int
    priority: int = 0

    def __post_init__(self) -> None:
        assert self.prompt_token_ids, self
        assert 1 <= self.num_output_tokens <= self.max_tokens, self


@dataclass(frozen=True, slots=True)
class Simulation:
    """What came of it."""

    seconds: float
    """As predicted, not as they passed."""
    num_steps: int
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_swaps: int
    """Of these, by swap."""
    num_wasted_tokens: int

    @property
    def share_wasted(self) -> float:
        """Of the computed tokens, those that were computed before."""
        return self.num_wasted_tokens / max(1, self.num_computed_tokens)


def simulate(
    requests: Iterable[SimulatedRequest],
    config: EngineConfig,
    num_blocks: int,
    cost_model: CostModel,
    on_step: Callable[[Scheduler, SchedulerOutput], None] | None = None,
    max_num_waiting: int | None = None,
) -> Simulation:
    """Take all requests through the scheduler, in bounded memory: at most `max_num_waiting` are held ready.

    Each must fit the cache when it is alone. Host memory is what `swap_space` says, none where it is left open. Copies
    wait for each other and for the step.
    """
    bytes_per_block = cost_model.bytes_per_cached_token * config.block_size
    num_host_blocks = int((config.swap_space or 0) * 2**30) // bytes_per_block
    manager = make_cache_manager(config, num_blocks, num_host_blocks)
    scheduler = Scheduler(config, manager, cost_model)
    sequences = _sequences(requests)
    window = max_num_waiting or _WAITING_PER_SEQUENCE * config.max_num_seqs
    lengths: dict[int, int] = {}
    seconds = 0.0
    num_steps = num_requests = num_computed = num_output = num_prompt = 0
    while True:
        for sequence, num_output_tokens in islice(sequences, max(0, window - len(scheduler.waiting))):
            assert manager.fits_empty_pool(sequence.num_prompt_tokens + num_output_tokens), sequence
            lengths[sequence.request_id] = num_output_tokens
            num_requests += 1
            num_prompt += sequence.num_prompt_tokens
            num_output += num_output_tokens
            scheduler.add(sequence)
        if not scheduler.has_unfinished():
            break
        output = scheduler.schedule()
        num_tokens = output.num_scheduled_tokens
        num_read = sum(item.sequence.num_computed_tokens + item.num_tokens for item in output.scheduled)
        transfers = output.transfers
        num_copied = len(transfers.out) + len(transfers.back) + len(transfers.filled)
        seconds += cost_model.step_seconds(num_tokens, num_read) + cost_model.copy_seconds(
            num_copied * config.block_size
        )
        num_steps += 1
        num_computed += num_tokens
        sampling = [item.sequence for item in output.scheduled if item.samples]
        scheduler.update(output)
        if on_step is not None:
            on_step(scheduler, output)
        for sequence in sampling:
            # Never a token of a prompt: an answer is no prefix of another.
            sequence.append(-1 - sequence.request_id)
            if len(sequence.output_token_ids) == lengths[sequence.request_id]:
                del lengths[sequence.request_id]
                scheduler.finish(sequence)
    return Simulation(
        seconds=seconds,
        num_steps=num_steps,
        num_requests=num_requests,
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        num_computed_tokens=num_computed,
        num_cached_tokens=manager.prefix_cache_hits.total(),
        num_preemptions=scheduler.counters.num_preemptions,
        num_swaps=scheduler.counters.num_swaps,
        num_wasted_tokens=scheduler.counters.tokens_wasted,
    )


def _sequences(requests: Iterable[SimulatedRequest]) -> Iterator[tuple[Sequence, int]]:
    params: dict[int, SamplingParams] = {}
    for request_id, simulated in enumerate(requests):
        limit = simulated.max_tokens
        if limit not in params:
            params[limit] = SamplingParams(max_tokens=limit)
        request = Request(request_id, simulated.prompt_token_ids, params[limit], priority=simulated.priority)
        yield Sequence(request), simulated.num_output_tokens
