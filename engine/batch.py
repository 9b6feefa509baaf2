"""A step's plan as flat tensors: the only form in which the model sees sequences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

from infer.engine.shared_prefixes import find_shared_prefixes
from infer.kernels.attention_metadata import AttentionMetadata

if TYPE_CHECKING:
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


def build_batch(
    output: SchedulerOutput, block_size: int, device: torch.device, *, shared_prefix_attention: bool = False
) -> Batch:
    """Flatten a plan that schedules at least one sequence. Reads the sequences, changes nothing.

    shared_prefix_attention: sequences that share their first blocks stand together, and the metadata says so
    """
    items = sorted(output.scheduled, key=lambda item: item.num_tokens > 1)
    block_table = _block_table(items)
    shared_prefixes = None
    if shared_prefix_attention:
        num_full_blocks = np.array([item.sequence.num_computed_tokens // block_size for item in items])
        num_decodes = sum(item.num_tokens == 1 for item in items)
        found = find_shared_prefixes(block_table, num_full_blocks, num_decodes, block_size)
        if len(found.groups):
            items, block_table = [items[place] for place in found.order], block_table[found.order]
            shared_prefixes = torch.from_numpy(found.groups).to(device)
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
        slot_mapping=torch.from_numpy(slots).to(device),
        block_table=torch.from_numpy(block_table).to(device),
        query_start_loc=torch.tensor(query_start_loc, dtype=torch.int32, device=device),
        seq_lens=torch.from_numpy(seq_lens.astype(np.int32)).to(device),
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
    return Batch(
        input_ids=torch.tensor([_input_ids(items)], device=device),
        position_ids=torch.from_numpy(position_ids)[None].to(device),
        metadata=metadata,
        logits_indices=torch.tensor(sampling, dtype=torch.long, device=device),
        sampling=tuple(item.sequence for item in items if item.samples),
    )


def _input_ids(items: list[ScheduledSequence]) -> list[int]:
    input_ids: list[int] = []
    for item in items:
        sequence, start = item.sequence, item.sequence.num_computed_tokens
        input_ids += sequence.token_ids[start : start + item.num_tokens]
        input_ids += sequence.draft_token_ids[: item.num_draft_tokens]
    return input_ids


def _block_table(items: list[ScheduledSequence]) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    table = np.zeros((len(items), max(len(item.sequence.block_table) for item in items)), dtype=np.int32)
    for row, item in zip(table, items, strict=True):
        row[: len(item.sequence.block_table)] = [block.block_id for block in item.sequence.block_table]
    return table
