"""What there is to attend to in a step, as a list of entries: which queries, over which chunks of which keys.

    causal      queries of one sequence, over its own keys          one entry for some of its queries
    shared      queries of several, over keys they have in common   the same, but every query sees every key

The queries of a sequence that shares a prefix have their turns: first with all others that share its chunks, in the end
alone. What a turn has merged is the state from which the next goes on. So the chunks of a query are merged in the same
order whoever shares them, and its result is the same to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infer.kernels.cpu.call import Entry
from infer.kernels.cpu.workspace import CHUNK, MAX_ROWS

if TYPE_CHECKING:
    from infer.kernels.attention_metadata import AttentionMetadata

_MAX_QUERY_LEN = 8
"""Of sequences in a shared entry, on average: who has more queries reads each key for many of them as it is."""

_ROWS_FOR_FREE = 16
"""As long as a key takes to come from memory, so many rows can be multiplied with it."""


Entries = NDArray[np.int64]
"""`[num_entries, fields of Entry]`, int64."""


class Progress(NamedTuple):
    """Of each sequence, `[num_seqs]`."""

    num_chunks: NDArray[np.int64]
    """That were attended to in shared entries, from the first on."""
    num_turns: NDArray[np.int64]
    """In how many turns."""


def make_turns(group: int, block_size: int, sliding_window: int, metadata: AttentionMetadata) -> list[Entries]:
    """A turn may rely on the states that those before it leave.

    group: query heads that share a KV head
    """
    queries_at_once = max(1, MAX_ROWS // group)
    starts = metadata.query_start_loc.numpy().astype(np.int64)
    seq_lens = metadata.seq_lens.numpy().astype(np.int64)
    done = Progress(np.zeros_like(seq_lens), np.zeros_like(seq_lens))
    groups = [(0, 0, 0, 0, 0, 0)]
    # A query whose window begins behind the first key of a prefix does not see all of it.
    if metadata.shared_prefixes is not None and not sliding_window:
        for first, end, _, end_block in metadata.shared_prefixes.tolist():
            token, end_token = int(starts[first]), int(starts[end])
            chunk, end_chunk = int(done.num_chunks[first]), end_block * block_size // CHUNK
            if end_chunk == chunk or end_token - token > _MAX_QUERY_LEN * (end - first):
                continue
            turn = int(done.num_turns[first])
            groups.append((turn, first, token, end_token, chunk, end_chunk))
            done.num_chunks[first:end], done.num_turns[first:end] = end_chunk, turn + 1
    shared, turn_of_shared = _shared_entries(np.array(groups), queries_at_once)
    causal = _causal_entries(starts, seq_lens, done, sliding_window, queries_at_once)
    turn_of_causal = done.num_turns[causal[:, 0]]
    return [
        np.concatenate([shared[turn_of_shared == turn], causal[turn_of_causal == turn]])
        for turn in range(int(done.num_turns.max()) + 1)
    ]


def _shared_entries(groups: NDArray[np.int64], queries_at_once: int) -> tuple[Entries, NDArray[np.int64]]:
    """And the turn of each. `groups`: `[num_groups, 6]`, turn, sequence, first token and end, first chunk and end."""
    num_spans = -(-(groups[:, 3] - groups[:, 2]) // queries_at_once)
    turn, sequence, token, end_token, first_chunk, end_chunk = np.repeat(groups, num_spans, axis=0).T
    first_token = token + queries_at_once * _count_within(num_spans)
    entries = _entries(
        sequence=sequence,
        first_token=first_token,
        num_queries=np.minimum(queries_at_once, end_token - first_token),
        position=end_chunk * CHUNK,
        first_chunk=first_chunk,
        end_chunk=end_chunk,
        is_first=first_chunk == 0,
        is_last=0,
    )
    return entries, turn


def _causal_entries(
    starts: NDArray[np.int64], seq_lens: NDArray[np.int64], done: Progress, sliding_window: int, queries_at_once: int
) -> Entries:
    """Sequences with many queries come last in a step, and their last queries see most keys: they are the first
    entries, so that nobody waits for them."""
    num_spans = -(-np.diff(starts) // queries_at_once)
    sequence = np.repeat(np.arange(len(seq_lens)), num_spans)[::-1]
    first_token = starts[sequence] + queries_at_once * _count_within(num_spans)[::-1]
    num_queries = np.minimum(queries_at_once, starts[sequence + 1] - first_token)
    position = seq_lens[sequence] - starts[sequence + 1] + first_token
    num_done = done.num_chunks[sequence]
    first_visible = np.maximum(position - sliding_window + 1, 0) if sliding_window else 0
    return _entries(
        sequence=sequence,
        first_token=first_token,
        num_queries=num_queries,
        position=position,
        first_chunk=np.maximum(first_visible // CHUNK, num_done),
        end_chunk=-(-(position + num_queries) // CHUNK),
        is_first=num_done == 0,
        is_last=True,
    )


def split_chunks(entries: Entries, num_kv_heads: int) -> tuple[Entries, Entries, int]:
    """The entries with their partials numbered, an entry for each of their chunks, and how many partials that makes."""
    columns = _columns(entries)
    num_chunks = columns["end_chunk"] - columns["first_chunk"]
    num_before = np.cumsum(num_chunks) - num_chunks
    owner = np.repeat(np.arange(len(entries)), num_chunks)
    number = np.arange(len(owner))
    chunk = columns["first_chunk"][owner] + _count_within(num_chunks)
    numbered = _entries(**columns | {"partial": num_before * num_kv_heads})
    changed = {"first_chunk": chunk, "end_chunk": chunk + 1, "partial": number * num_kv_heads}
    return numbered, _entries(**_columns(entries[owner]) | changed), len(owner) * num_kv_heads


def costs_of(entries: Entries, group: int) -> NDArray[np.int64]:
    """Of each at a KV head, in keys times rows; few rows take as long as the keys take to come."""
    columns = _columns(entries)
    end = np.minimum(columns["end_chunk"] * CHUNK, columns["position"] + columns["num_queries"])
    num_rows = np.maximum(columns["num_queries"] * group, _ROWS_FOR_FREE)
    costs: NDArray[np.int64] = (end - columns["first_chunk"] * CHUNK) * num_rows
    return costs


def largest_num_queries(entries: Entries) -> int:
    return int(_columns(entries)["num_queries"].max())


def _count_within(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 to size - 1 for each size, one behind the other."""
    counted: NDArray[np.int64] = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return counted


def _columns(entries: Entries) -> dict[str, NDArray[np.int64]]:
    return dict(zip(Entry._fields, entries.T, strict=True))


def _entries(**columns: NDArray[np.int64] | int) -> Entries:
    """Columns that are not given are 0."""
    in_order = [columns.get(name, 0) for name in Entry._fields]
    stacked = np.stack(np.broadcast_arrays(*in_order), axis=1)
    return np.ascontiguousarray(stacked, dtype=np.int64)
