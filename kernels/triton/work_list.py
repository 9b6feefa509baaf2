"""The work of a step's decodes as a list on the device: which rows attend to which range of keys, and where it goes.

A sequence's keys are cut into splits at multiples of `SPLIT_SIZE`, whatever the batch, and those that it shares with
others (`AttentionMetadata.shared_prefixes`) at the borders of what is shared as well. A split of its own keys is an
entry of one query; a split of shared keys is an entry for each tile of the queries that share it. Every row of an entry
sees all keys of its range. What a query's entries come to lies in slots, in the order of the keys, until it is merged.

    keys of query 5    |--- shared by 0-9 ---|--------- its own ---------|
    splits             0        512        1024 1100      1536           1700
    slots of query 5   |   0    |    1     |  2  |    3    |      4      |

The list is made by kernels, once for all layers: the host waits for nothing, and a graph that has captured a step makes
the list anew from the tensors that it is given.
"""

# Triton's decorator has no types.
# mypy: disable-error-code=untyped-decorator

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata

SPLIT_SIZE = 512
"""Keys a split; a multiple of every tile's `num_keys`."""

MAX_LEVELS = 4
"""Nested shared ranges of one sequence; further ones are read as its own."""

ENTRY_SIZE = 6
"""int32 of an entry: first token, number of tokens, row of the block table, first key, end key, slot. Slot -1: there is
no other entry of the query, and the result is the output itself."""

_MAX_LEVELS, _ENTRY_SIZE = tl.constexpr(MAX_LEVELS), tl.constexpr(ENTRY_SIZE)
_CHUNK = tl.constexpr(128)


@dataclass(frozen=True, slots=True)
class WorkList:
    """Of the first `num_decodes` sequences."""

    own: torch.Tensor
    """int32 `[capacity, ENTRY_SIZE]`"""
    shared: torch.Tensor
    """int32 `[capacity, ENTRY_SIZE]`"""
    num_entries: torch.Tensor
    """int32 `[2, 4]`: how many there are of each, in column 0."""
    num_slots: torch.Tensor
    """int32 `[num_decodes]`: how many each query has."""
    max_slots: int
    """No query has more."""


def list_work(metadata: AttentionMetadata, block_size: int, sliding_window: int, tokens_per_tile: int) -> WorkList:
    """tokens_per_tile: queries in an entry of shared keys. A layer with a window reads all keys as a query's own."""
    num_seqs, device = metadata.num_decodes, metadata.seq_lens.device
    groups = None if sliding_window else metadata.shared_prefixes
    num_groups = 0 if groups is None else groups.shape[0]
    max_splits = triton.cdiv(metadata.max_seq_len, SPLIT_SIZE)
    if sliding_window:
        max_splits = min(max_splits, triton.cdiv(sliding_window, SPLIT_SIZE) + 1)
    # On each level a sequence is in one group, and the last tile of each group may be short.
    max_tiles = min(num_groups, MAX_LEVELS) * (num_seqs // tokens_per_tile) + num_groups

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    work = WorkList(
        own=empty(num_seqs * max_splits, ENTRY_SIZE),
        shared=empty(max_tiles * max_splits, ENTRY_SIZE),
        num_entries=empty(2, 4),
        num_slots=empty(num_seqs),
        max_slots=max_splits + min(num_groups, MAX_LEVELS),
    )
    first_keys, first_slots, counts = empty(3, num_seqs + num_groups)
    grid = (num_seqs + num_groups,)
    sizes = {"block_size": block_size, "split_size": SPLIT_SIZE, "num_warps": 1, "enable_fp_fusion": True}
    count_entries_kernel[grid](
        first_keys,
        first_slots,
        counts,
        work.num_slots,
        metadata.seq_lens,
        groups,
        num_seqs,
        num_groups,
        sliding_window=sliding_window,
        tokens_per_tile=tokens_per_tile,
        **sizes,
    )
    write_entries_kernel[grid](
        work.own,
        work.shared,
        work.num_entries,
        first_keys,
        first_slots,
        counts,
        work.num_slots,
        metadata.seq_lens,
        groups,
        num_seqs,
        num_groups,
        tokens_per_tile=tokens_per_tile,
        **sizes,
    )
    return work


# What changes from step to step must not lead to a compilation for its divisors.
@triton.jit(do_not_specialize=["num_seqs", "num_groups"])
def count_entries_kernel(
    first_keys_ptr: tl.tensor,
    first_slots_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    num_slots_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    groups_ptr: tl.tensor | None,
    num_seqs: tl.tensor,
    num_groups: tl.tensor,
    sliding_window: tl.constexpr,
    tokens_per_tile: tl.constexpr,
    block_size: tl.constexpr,
    split_size: tl.constexpr,
) -> None:
    """Programs `[sequences, then groups]`: the first of its keys and of its slots, and how many entries it has."""
    index = tl.program_id(0)
    if index < num_seqs:
        first_key, first_slot, _ = _shared_before(groups_ptr, num_groups, index, index + 1, block_size, split_size)
        seq_len = tl.load(seq_lens_ptr + index)
        if sliding_window > 0:
            first_key = tl.maximum(seq_len - sliding_window, 0)
        count = _num_splits(first_key, seq_len, split_size)
        tl.store(num_slots_ptr + index, first_slot + count)
    else:
        group = index - num_seqs
        first_seq, end_seq, first_block, end_block = _group(groups_ptr, group)
        _, first_slot, depth = _shared_before(groups_ptr, group, first_seq, end_seq, block_size, split_size)
        first_key = first_block * block_size
        count = tl.cdiv(end_seq - first_seq, tokens_per_tile)
        count *= _num_splits(first_key, end_block * block_size, split_size)
        count = tl.where((depth < _MAX_LEVELS) & (end_seq <= num_seqs), count, 0)
    tl.store(first_keys_ptr + index, first_key)
    tl.store(first_slots_ptr + index, first_slot)
    tl.store(counts_ptr + index, count)


@triton.jit(do_not_specialize=["num_seqs", "num_groups"])
def write_entries_kernel(
    own_ptr: tl.tensor,
    shared_ptr: tl.tensor,
    num_entries_ptr: tl.tensor,
    first_keys_ptr: tl.tensor,
    first_slots_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    num_slots_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    groups_ptr: tl.tensor | None,
    num_seqs: tl.tensor,
    num_groups: tl.tensor,
    tokens_per_tile: tl.constexpr,
    block_size: tl.constexpr,
    split_size: tl.constexpr,
) -> None:
    """Programs `[sequences, then groups]`, each with its own entries.

    Of the sequences' entries those of whole splits come first, then the last one of each: programs that take every
    n-th one get much the same.
    """
    index = tl.program_id(0)
    first_key = tl.load(first_keys_ptr + index)
    slot = tl.load(first_slots_ptr + index)
    if index < num_seqs:
        whole_before, whole, last_before, last = _sums_of_sequences(counts_ptr, index, num_seqs)
        seq_len = tl.load(seq_lens_ptr + index)
        count = tl.load(counts_ptr + index)
        is_only = tl.load(num_slots_ptr + index) == 1
        for split in range(count):
            entry = tl.where(split == count - 1, whole + last_before, whole_before + split)
            start, end = _split_range(first_key, seq_len, split, split_size)
            _write(own_ptr, entry, index, 1, index, start, end, tl.where(is_only, -1, slot + split))
        tl.store(num_entries_ptr, whole + last, mask=index == 0)
        if num_groups == 0:
            tl.store(num_entries_ptr + 4, 0, mask=index == 0)
    else:
        group = index - num_seqs
        before, total = _sums_of_groups(counts_ptr + num_seqs, group, num_groups)
        first_seq, end_seq, _, end_block = _group(groups_ptr, group)
        end_key = end_block * block_size
        num_tiles = tl.cdiv(end_seq - first_seq, tokens_per_tile)
        for number in range(tl.load(counts_ptr + index)):
            # The tiles of one split stand side by side: they read the same keys at the same time.
            split = number // num_tiles
            token = first_seq + number % num_tiles * tokens_per_tile
            num_tokens = tl.minimum(end_seq - token, tokens_per_tile)
            start, end = _split_range(first_key, end_key, split, split_size)
            _write(shared_ptr, before + number, token, num_tokens, first_seq, start, end, slot + split)
        tl.store(num_entries_ptr + 4, total, mask=group == 0)


@triton.jit
def _group(groups_ptr: tl.tensor | None, group: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """First and end sequence, first and end block."""
    first_seq = group * 0
    end_seq = first_seq
    first_block = first_seq
    end_block = first_seq
    if groups_ptr is not None:
        first_seq = tl.load(groups_ptr + group * 4)
        end_seq = tl.load(groups_ptr + group * 4 + 1)
        first_block = tl.load(groups_ptr + group * 4 + 2)
        end_block = tl.load(groups_ptr + group * 4 + 3)
    return first_seq, end_seq, first_block, end_block


@triton.jit
def _shared_before(
    groups_ptr: tl.tensor | None,
    num_groups: tl.tensor,
    first_seq: tl.tensor,
    end_seq: tl.tensor,
    block_size: tl.constexpr,
    split_size: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """What the first `num_groups` groups say of these sequences: how many keys they share with others, in how many
    splits, on how many levels. An outer group comes before its inner ones."""
    end_key = first_seq * 0
    num_splits = end_key
    depth = end_key
    if groups_ptr is not None:
        for start in range(0, num_groups, _CHUNK):
            ids = start + tl.arange(0, _CHUNK)
            group = groups_ptr + ids * 4
            mask = ids < num_groups
            group_first = tl.load(group, mask=mask, other=0)
            group_end = tl.load(group + 1, mask=mask, other=0)
            first = tl.load(group + 2, mask=mask, other=0) * block_size
            end = tl.load(group + 3, mask=mask, other=0) * block_size
            contains = ((group_first <= first_seq) & (end_seq <= group_end)).to(tl.int32)
            is_used = (contains > 0) & (depth + tl.cumsum(contains, 0) <= _MAX_LEVELS)
            end_key = tl.maximum(end_key, tl.max(tl.where(is_used, end, 0), 0))
            num_splits += tl.sum(tl.where(is_used, tl.cdiv(end, split_size) - first // split_size, 0), 0)
            depth += tl.sum(contains, 0)
    return end_key, num_splits, depth


@triton.jit
def _num_splits(first_key: tl.tensor, end_key: tl.tensor, split_size: tl.constexpr) -> tl.tensor:
    return tl.where(first_key < end_key, tl.cdiv(end_key, split_size) - first_key // split_size, 0)


@triton.jit
def _split_range(
    first_key: tl.tensor, end_key: tl.tensor, split: tl.tensor, split_size: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """First and end key of the keys' split number `split`."""
    start = (first_key // split_size + split) * split_size
    return tl.maximum(start, first_key), tl.minimum(start + split_size, end_key)


@triton.jit
def _sums_of_sequences(
    counts_ptr: tl.tensor, seq: tl.tensor, num_seqs: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Entries of whole splits of the sequences before `seq` and of all, and last entries of these and of all."""
    whole_before = seq * 0
    whole = whole_before
    last_before = whole_before
    last = whole_before
    for start in range(0, num_seqs, _CHUNK):
        ids = start + tl.arange(0, _CHUNK)
        counts = tl.load(counts_ptr + ids, mask=ids < num_seqs, other=0)
        is_before = ids < seq
        lasts = tl.minimum(counts, 1)
        whole_before += tl.sum(tl.where(is_before, counts - lasts, 0), 0)
        whole += tl.sum(counts - lasts, 0)
        last_before += tl.sum(tl.where(is_before, lasts, 0), 0)
        last += tl.sum(lasts, 0)
    return whole_before, whole, last_before, last


@triton.jit
def _sums_of_groups(counts_ptr: tl.tensor, group: tl.tensor, num_groups: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Entries of the groups before `group`, and of all."""
    before = group * 0
    total = before
    for start in range(0, num_groups, _CHUNK):
        ids = start + tl.arange(0, _CHUNK)
        counts = tl.load(counts_ptr + ids, mask=ids < num_groups, other=0)
        before += tl.sum(tl.where(ids < group, counts, 0), 0)
        total += tl.sum(counts, 0)
    return before, total


@triton.jit
def _write(
    entries_ptr: tl.tensor,
    entry: tl.tensor,
    token: tl.tensor,
    num_tokens: tl.tensor,
    row: tl.tensor,
    first_key: tl.tensor,
    end_key: tl.tensor,
    slot: tl.tensor,
) -> None:
    entries_ptr += entry * _ENTRY_SIZE
    tl.store(entries_ptr, token)
    tl.store(entries_ptr + 1, num_tokens)
    tl.store(entries_ptr + 2, row)
    tl.store(entries_ptr + 3, first_key)
    tl.store(entries_ptr + 4, end_key)
    tl.store(entries_ptr + 5, slot)
