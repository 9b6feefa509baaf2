"""What the compiled attention is told, and what it works on."""

from __future__ import annotations

from typing import NamedTuple

WHOLE = 0
"""Phase of a call: a unit of work is a span of queries at a KV head, over all of its keys."""
CHUNKS = 1
"""A unit is one chunk of those keys. For calls with too few spans to keep the threads busy."""
MERGE = 2
"""A unit merges the chunks of a span. The result is that of WHOLE, to the last bit."""


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
    query_start_loc: int
    seq_lens: int
    num_seqs: int
    max_blocks: int
    num_kv_heads: int
    group: int
    """Query heads that share a KV head."""
    head_dim: int
    value_head_dim: int
    block_size: int
    sliding_window: int
    queries_at_once: int
    """Queries in a span, at most."""
    phase: int = WHOLE
    units_at_once: int = 1
    """Units that a thread takes together."""
    workspaces: int = 0
    """Memory of the threads, one behind the other."""
    workspace_bytes: int = 0
    partials: int = 0
    """What CHUNKS leaves for MERGE."""


class Rows(NamedTuple):
    """A span at a KV head: consecutive queries of one sequence, times the heads that share the KV head.
    `row = query * group + head of the group`"""

    sequence: int
    kv_head: int
    first_token: int
    """Of the queries, in the flat batch."""
    position: int
    """Of the first query, in its sequence."""
    num_queries: int


class Partial(NamedTuple):
    """Softmaxes over a part of the keys, not yet divided by their totals. Addresses of float32."""

    sums: int
    """`[rows, value_head_dim]`: values weighted by `2 ** (score - peak)`."""
    peaks: int
    """`[rows]`: the largest score."""
    totals: int
    """`[rows]`: the sum of the weights."""
