"""What the compiled attention is told, and what it works on."""

from __future__ import annotations

from typing import NamedTuple

WHOLE = 0
"""Phase of a call: a unit of work is a span of queries at a KV head, over all of its keys."""
CHUNKS = 1
"""The same, of entries of one chunk each. For calls with too few entries to keep the threads busy."""
MERGE = 2
"""A unit merges the chunks of an entry. The result is that of WHOLE, to the last bit."""


class Call(NamedTuple):
    """One call of the operator, read by every thread: in compiled code a record with these fields. Tensors are
    addresses."""

    query: int
    query_token_bytes: int
    """From a token's query to the next one's; so for heads."""
    query_head_bytes: int
    key_cache: int
    value_cache: int
    key_scales: int
    value_scales: int
    page_format: int
    """Whether keys and values are quantised, and how: see `infer.kernels.cpu.layout`."""
    output: int
    sinks: int
    """float32 `[num_heads]` in units of log 2, or 0 where there are none."""
    scale: float
    """Brings scores into units of log 2, so that weights are powers of two. `softcap` is in these units, too."""
    softcap: float
    block_table: int
    """From here on the fields are the same for all layers of one shape: see `Plan`."""
    seq_lens: int
    max_blocks: int
    num_kv_heads: int
    group: int
    """Query heads that share a KV head."""
    head_dim: int
    value_head_dim: int
    block_size: int
    sliding_window: int
    queries_at_once: int
    """In an entry, at most."""
    phase: int = WHOLE
    entries: int = 0
    num_entries: int = 0
    units_at_once: int = 1
    """Units that a thread takes together: of an entry, the first KV head's is followed by the next one's."""
    workspaces: int = 0
    """Memory of the threads, one behind the other."""
    workspace_bytes: int = 0
    partials: int = 0
    """What CHUNKS leaves for MERGE."""
    states: int = 0
    num_states: int = 0
    """A state for each query and head of the step, `Partial` of them all: what entries that are not the last of their
    queries leave for the next."""


class Entry(NamedTuple):
    """Queries and the keys they see, to be attended to at each KV head: see `infer.kernels.cpu.work_list`. In memory a
    field is an int64."""

    sequence: int
    """Whose keys."""
    first_token: int
    """Of the queries, in the flat batch, where they are consecutive."""
    num_queries: int
    position: int
    """Of the first query, in the sequence: it sees the keys up to there, the next one a key more. In a shared entry,
    where all queries see all keys, the first position behind these."""
    first_chunk: int
    end_chunk: int
    is_first: int
    """Whether nothing was merged before for these queries."""
    is_last: int
    """Whether nothing comes after. What is neither first nor last leaves a state, and goes on from one."""
    partial: int = 0
    """Number of the first chunk's partial, at KV head 0; each chunk has as many as there are heads."""


class Rows(NamedTuple):
    """An entry at a KV head: its queries, times the heads that share the KV head.
    `row = query * group + head of the group`"""

    entry: Entry
    kv_head: int


class Partial(NamedTuple):
    """Softmaxes over a part of the keys, not yet divided by their totals. Addresses of float32."""

    sums: int
    """`[rows, value_head_dim]`: values weighted by `2 ** (score - peak)`."""
    peaks: int
    """`[rows]`: the largest score."""
    totals: int
    """`[rows]`: the sum of the weights."""
