"""A step's plan as flat tensors: the only form in which the model sees sequences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from infer.engine.shared_prefixes import find_shared_prefixes
from infer.kernels.attention_metadata import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from infer.engine.scheduler_output import ScheduledSequence, SchedulerOutput
    from infer.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Batch:
    """Decodes stand before chunks of prompts.

    input_ids     a7 | b9 | c0 c1 c2 c3 | d4 d5      one row, whatever the number of sequences
    position_ids   7 |  9 |  0  1  2  3 |  4  5
    """

    input_ids: torch.Tensor
    """int64 `[1, num_tokens]`"""
    position_ids: torch.Tensor
    """int64 `[1, num_tokens]`"""
    metadata: AttentionMetadata
    logits_indices: torch.Tensor
    """int64 `[num_logits]`: the tokens whose logits are needed."""
    sampling: tuple[Sequence, ...]
    """Whose tokens those are: of each its last one and its drafts."""
    pending: tuple[tuple[int, Sequence], ...] = ()
    """Places in `input_ids` for tokens that only the device knows, and whose they are."""


def build_batch(
    output: SchedulerOutput,
    block_size: int,
    device: torch.device,
    *,
    stage: Callable[[NDArray[Any]], torch.Tensor] | None = None,
    shared_prefix_attention: bool = False,
) -> Batch:
    """Flatten a plan that schedules at least one sequence. Reads the sequences, changes nothing.

    stage: takes an array to `device`; by default at once
    shared_prefix_attention: sequences that share their first blocks stand together, and the metadata says so
    """
    stage = stage or (lambda array: torch.from_numpy(array).to(device))
    items = sorted(output.scheduled, key=lambda item: item.num_tokens > 1)
    block_table = _block_table(items)
    shared_prefixes = None
    if shared_prefix_attention:
        num_full_blocks = np.array([item.sequence.num_computed_tokens // block_size for item in items])
        num_decodes = sum(item.num_tokens == 1 for item in items)
        found = find_shared_prefixes(block_table, num_full_blocks, num_decodes, block_size)
        if len(found.groups):
            items, block_table = [items[place] for place in found.order], block_table[found.order]
            shared_prefixes = stage(found.groups)
    query_lens = [item.num_tokens for item in items]
    query_start_loc = [0, *accumulate(query_lens)]
    first_positions = np.array([item.sequence.num_computed_tokens for item in items])
    # Position of a flat token: its place in the batch, less where its sequence begins, plus what was computed before.
    shift = first_positions - query_start_loc[:-1]
    position_ids = np.arange(query_start_loc[-1]) + np.repeat(shift, query_lens)
    owner = np.repeat(np.arange(len(items)), query_lens)
    slots = block_table[owner, position_ids // block_size].astype(np.int64) * block_size + position_ids % block_size
    seq_lens = first_positions + query_lens
    metadata = AttentionMetadata(
        slot_mapping=stage(slots),
        block_table=stage(block_table),
        query_start_loc=stage(np.array(query_start_loc, np.int32)),
        seq_lens=stage(seq_lens.astype(np.int32)),
        max_query_len=max(query_lens),
        max_seq_len=int(seq_lens.max()),
        num_decodes=query_lens.count(1),
        shared_prefixes=shared_prefixes,
    )
    sampling = [
        token
        for item, end in zip(items, query_start_loc[1:], strict=True)
        if item.samples
        for token in range(end - 1 - item.num_draft_tokens, end)
    ]
    # Of a sequence with a pending token that is the last one: its drafts are guessed when it is known.
    return Batch(
        input_ids=stage(np.array([_input_ids(items)], np.int64)),
        position_ids=stage(position_ids[None]),
        metadata=metadata,
        logits_indices=stage(np.array(sampling, np.int64)),
        sampling=tuple(item.sequence for item in items if item.samples),
        pending=tuple(
            (end - 1, item.sequence)
            for item, end in zip(items, query_start_loc[1:], strict=True)
            if item.sequence.num_computed_tokens + item.num_tokens
            > len(item.sequence.token_ids) + item.num_draft_tokens
        ),
    )


def _input_ids(items: list[ScheduledSequence]) -> list[int]:
    input_ids: list[int] = []
    for item in items:
        sequence, start = item.sequence, item.sequence.num_computed_tokens
        input_ids += sequence.token_ids[start : start + item.num_tokens]
        if start + item.num_tokens - item.num_draft_tokens > len(sequence.token_ids):
            input_ids.append(0)
        input_ids += sequence.draft_token_ids[: item.num_draft_tokens]
    return input_ids


def _block_table(items: list[ScheduledSequence]) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    table = np.zeros((len(items), max(len(item.sequence.block_table) for item in items)), dtype=np.int32)
    for row, item in zip(table, items, strict=True):
        row[: len(item.sequence.block_table)] = [block.block_id for block in item.sequence.block_table]
    return table
