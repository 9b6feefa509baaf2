"""One frozen snapshot of what the engine is doing; displays pull it, the engine never pushes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from infer.engine.scheduler import Scheduler

FREE, CACHED, USED, SHARED = 0, 1, 2, 3
"""States of a block in `EngineStats.block_states`: free and empty; free but still holding a cached prefix;
held by one sequence; held by several."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters are totals since the engine started; the rest is the state after the last step."""

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    """Swapped ones, of which no sequence runs, not included."""
    num_requests_swapped: int = 0
    num_requests_finished: int = 0
    num_preemptions_total: int = 0
    num_swaps_total: int = 0
    """Of the preemptions, those by swap; the others are by recomputation."""
    num_blocks_to_host_total: int = 0
    """Copied to host memory: of swapped sequences, evicted prefixes, and prompts on their way to the disk."""
    num_blocks_from_host_total: int = 0
    num_blocks: int = 0
    """Usable blocks: the null block is not counted."""
    block_size: int = 0
    block_states: bytes = b""
    """One byte a usable block: FREE, CACHED, USED or SHARED, by block id."""
    prefix_cache_queries: int = 0
    """In tokens."""
    prefix_cache_hits: int = 0
    """In tokens, of all tiers."""
    prefix_cache_hits_by_tier: Mapping[str, int] = field(default_factory=dict)
    """In tokens: `device`, `host`, `disk`. A tier is asked for what those before it do not have."""
    prompt_tokens_total: int = 0
    """Prompt tokens computed or taken from the cache, each once."""
    completion_tokens_total: int = 0
    tokens_wasted_total: int = 0
    """Computed again because of a preemption."""
    draft_tokens_total: int = 0
    """Guesses that were computed."""
    accepted_tokens_total: int = 0
    """Of these, those that were right."""
    num_steps: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time by phase: draft, schedule, prepare, execute, sample, update, detokenize."""

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that sequences hold, 0 to 1."""
        held = self.block_states.count(USED) + self.block_states.count(SHARED)
        return held / self.num_blocks if self.num_blocks else 0.0


def scheduler_figures(scheduler: Scheduler) -> dict[str, Any]:
    """Those fields of EngineStats that a scheduler and its cache know. A request counts once, however many of its
    sequences run or wait."""
    manager, counters = scheduler.kv_cache_manager, scheduler.counters
    running = {each.request_id for each in scheduler.running}
    swapped = {each.request_id for each in scheduler.waiting if each.host_blocks} - running
    waiting = {each.request_id for each in scheduler.waiting} - running - swapped
    return {
        "num_requests_running": len(running),
        "num_requests_waiting": len(waiting),
        "num_requests_swapped": len(swapped),
        "num_preemptions_total": counters.num_preemptions,
        "num_swaps_total": counters.num_swaps,
        "num_blocks_to_host_total": counters.num_blocks_to_host,
        "num_blocks_from_host_total": counters.num_blocks_from_host,
        "num_blocks": manager.pool.num_blocks,
        "block_size": manager.block_size,
        "block_states": manager.pool.block_states(),
        "prefix_cache_queries": manager.prefix_cache_queries,
        "prefix_cache_hits": manager.prefix_cache_hits.total(),
        "prefix_cache_hits_by_tier": dict(manager.prefix_cache_hits),
        "prompt_tokens_total": counters.prompt_tokens,
        "tokens_wasted_total": counters.tokens_wasted,
        "draft_tokens_total": counters.draft_tokens,
        "accepted_tokens_total": counters.accepted_tokens,
        "num_steps": scheduler.num_steps,
    }
