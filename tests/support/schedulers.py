"""Schedulers without a model: requests of given tokens, steps in which every sampled token is chosen by the test."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from infer.engine.cache_tiers import make_cache_manager
from infer.engine.config import EngineConfig
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.engine.scheduler import Scheduler
from infer.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.engine.cost_model import CostModel
    from infer.engine.scheduler_output import SchedulerOutput

_ids = count()


def make_scheduler(
    num_blocks: int,
    block_size: int,
    *,
    window: int = 0,
    num_host_blocks: int = 0,
    cost_model: CostModel | None = None,
    **config: Any,
) -> Scheduler:
    """Without admission control, unless asked for: most cases are about what happens when room runs out."""
    settings = EngineConfig(block_size=block_size, **{"enable_admission_control": False, **config})
    manager = make_cache_manager(settings, num_blocks, num_host_blocks, window=window)
    return Scheduler(settings, manager, cost_model)


def make_sequence(prompt: int | list[int], *, max_tokens: int = 16, priority: int = 0) -> Sequence:
    """A sequence of `prompt` tokens: a list, or so many tokens that no other sequence has."""
    request_id = next(_ids)
    tokens = [1_000_000 * (request_id + 1) + i for i in range(prompt)] if isinstance(prompt, int) else prompt
    return Sequence(Request(request_id, tuple(tokens), SamplingParams(max_tokens=max_tokens), priority=priority))


def planned(output: SchedulerOutput) -> dict[Sequence, int]:
    """Tokens by sequence of a plan."""
    return {item.sequence: item.num_tokens for item in output.scheduled}


def block_ids(sequence: Sequence) -> list[int]:
    return [block.block_id for block in sequence.block_table]


class ShadowCache:
    """What a model would have written into the slots of the cache: for each, the tokens up to its own.

    A step that reads another token's slot anywhere would generate something else, and so would one that reads a draft
    which turned out wrong.
    """

    def __init__(self, block_size: int, window: int = 0) -> None:
        self._window = window
        self._block_size = block_size
        self._slots: dict[int, tuple[int, ...]] = {}
        self._host_slots: dict[int, tuple[int, ...]] = {}

    def execute(self, output: SchedulerOutput) -> None:
        """Make the copies of a step and write all its tokens, then check all that its queries read."""
        self._copy(output.transfers.out, self._slots, self._host_slots)
        self._copy(output.transfers.within, self._slots, self._slots)
        self._copy(output.transfers.back, self._host_slots, self._slots)
        self._execute(output)
        self._copy(output.transfers.filled, self._slots, self._host_slots)

    def _copy(
        self, pairs: tuple[tuple[int, int], ...], source: dict[int, tuple[int, ...]], target: dict[int, tuple[int, ...]]
    ) -> None:
        targets = [block_id for _, block_id in pairs]
        assert len(set(targets)) == len(targets), f"two copies into one block: {pairs}"
        read = [[source.get(block * self._block_size + i, ()) for i in range(self._block_size)] for block, _ in pairs]
        for block_id, slots in zip(targets, read, strict=True):
            target.update((block_id * self._block_size + i, slot) for i, slot in enumerate(slots))

    def _execute(self, output: SchedulerOutput) -> None:
        written: set[int] = set()
        for item in output.scheduled:
            first = item.sequence.num_computed_tokens
            for position in range(first, first + item.num_tokens):
                slot = self._slot(item.sequence, position)
                assert slot not in written, f"two tokens in slot {slot}"
                written.add(slot)
                self._slots[slot] = _tokens_to(item.sequence, position)
        for item in output.scheduled:
            first_seen = max(0, item.sequence.num_computed_tokens + 1 - self._window) if self._window else 0
            for position in range(first_seen, item.sequence.num_computed_tokens + item.num_tokens):
                found = self._slots.get(self._slot(item.sequence, position))
                assert found == _tokens_to(item.sequence, position), (item.sequence, position, found)

    def _slot(self, sequence: Sequence, position: int) -> int:
        block = sequence.block_table[position // self._block_size]
        return block.block_id * self._block_size + position % self._block_size


def _tokens_to(sequence: Sequence, position: int) -> tuple[int, ...]:
    return (*sequence.token_ids, *sequence.draft_token_ids)[: position + 1]


def draw_run(sequence: Sequence, sample: Callable[[Sequence], int | None]) -> list[int | None]:
    """What a step draws for `sequence`: a token, and one more for each draft that was right. Nothing is changed."""
    num_tokens, num_outputs = sequence.num_tokens, len(sequence.output_token_ids)
    run: list[int | None] = []
    for draft in (*sequence.draft_token_ids, -1):
        token_id = sample(sequence)
        run.append(token_id)
        if token_id is None or token_id != draft:
            break
        sequence.append(token_id)
    del sequence.token_ids[num_tokens:], sequence.output_token_ids[num_outputs:]
    return run


def run_step(
    scheduler: Scheduler,
    sample: Callable[[Sequence], int | None] = lambda sequence: 7,
    shadow: ShadowCache | None = None,
    propose: Callable[[Sequence], list[int]] = lambda sequence: [],
) -> SchedulerOutput:
    """One step, checked before and after; a sequence for which `sample` gives None has to await its token.

    Drafts are proposed for all that run, also where they can be of no use.
    """
    for sequence in scheduler.running:
        sequence.draft_token_ids = propose(sequence)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens <= scheduler.config.max_num_batched_tokens
    assert sum(item.num_draft_tokens for item in output.scheduled) <= scheduler.config.max_num_draft_tokens
    assert len(output.scheduled) <= scheduler.config.max_num_seqs
    if shadow is not None:
        shadow.execute(output)
    runs = {item.sequence: draw_run(item.sequence, sample) for item in output.scheduled if item.samples}
    scheduler.update(output, {sequence: len(run) - 1 for sequence, run in runs.items()})
    for sequence, run in runs.items():
        for token_id in run:
            choose(scheduler, sequence, token_id)
        assert len(sequence.output_token_ids) <= sequence.max_output_tokens, "drafts beyond the end of the answer"
    scheduler.check()
    return output


def choose(scheduler: Scheduler, sequence: Sequence, token_id: int | None) -> None:
    """Give a sequence its next token; one that has `max_tokens` outputs then is finished."""
    sequence.awaits_choice = token_id is None
    if token_id is not None:
        sequence.append(token_id)
        if len(sequence.output_token_ids) == sequence.request.sampling_params.max_tokens:
            scheduler.finish(sequence)
