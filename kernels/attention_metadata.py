"""Where the tokens of one step lie: what every attention kernel is told besides the tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """A step's flat batch, seen by the attention. Sequence `i` owns the queries
    `query_start_loc[i] : query_start_loc[i + 1]`; its last query is its token at position `seq_lens[i] - 1`.

        tokens of a sequence   0 ............ seq_len - query_len ........... seq_len - 1
                               |-- computed earlier --|------- this step's queries -----|
    """

    slot_mapping: torch.Tensor
    """int64 `[num_tokens]`: block_id * block_size + offset, where each token's key and value are stored."""
    block_table: torch.Tensor
    """int32 `[num_seqs, max_blocks]`: block ids by position; entries past a sequence's blocks are 0."""
    query_start_loc: torch.Tensor
    """int32 `[num_seqs + 1]`."""
    seq_lens: torch.Tensor
    """int32 `[num_seqs]`: tokens in the cache after this step's are stored."""
    max_query_len: int
    max_seq_len: int
    num_decodes: int
    """The first `num_decodes` sequences have exactly one query each, the ones behind them any number."""
    shared_prefixes: torch.Tensor | None = None
    """int32 `[num_groups, 4]`: what consecutive sequences have in common, so that a kernel may read it once for all of
    them. What attention is does not depend on it. Of each group `first_seq, end_seq, first_block, end_block`: the
    sequences `first_seq` to `end_seq - 1` hold the same blocks at `first_block` to `end_block - 1` of their tables, all
    of them full and before the first query of each. Groups nest: an inner one begins at the block where its outer one
    ends, which comes before it.

        blocks        0        5        9
        sequence 0    |- [0, 3, 0, 5] -|- its own -|
        sequence 1    |       "        |- [1, 3, 5, 9] -|- its own -|
        sequence 2    |       "        |       "        |- its own -|
    """
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What an implementation works out once for all layers, under keys of its own."""
