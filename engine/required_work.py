"""What the rows of a run need computed, however they are scheduled: every shared prefix once, every token once.

Sorted by their tokens, rows that share a prefix are neighbours: what a row shares with the one before it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.engine.model_flops import ModelFlops


@dataclass(frozen=True, slots=True)
class RowLengths:
    """One row."""

    num_shared_tokens: int
    """Of its prompt, that another row has computed."""
    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def num_computed_tokens(self) -> int:
        """The last token that is generated need not enter the network."""
        return max(0, self.num_prompt_tokens - self.num_shared_tokens + self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class RequiredWork:
    """Sums over all rows."""

    num_tokens: int
    """That enter the network."""
    num_logits: int
    gemm_flops: float
    attention_flops: float
    kv_bytes: float
    """Read, where every decode step of a row reads all that is before it, and a prompt is read once."""

    @property
    def flops(self) -> float:
        return self.gemm_flops + self.attention_flops


def row_lengths(prompts: Sequence[Sequence[int]], num_output_tokens: Sequence[int]) -> list[RowLengths]:
    """Of rows with these prompts, in the order of their tokens; at most all tokens but the last are shared."""
    # Big-endian, so that bytes have the order of the numbers.
    arrays = [np.asarray(prompt, dtype=">i4") for prompt in prompts]
    order = sorted(range(len(arrays)), key=lambda index: arrays[index].tobytes())
    shared = [0, *(_num_common(arrays[first], arrays[second]) for first, second in pairwise(order))]
    return [
        RowLengths(max(0, min(num_shared, len(arrays[index]) - 1)), len(arrays[index]), num_output_tokens[index])
        for index, num_shared in zip(order, shared, strict=False)
    ]


def required_work(rows: Sequence[RowLengths], model: ModelFlops, kv_bytes_per_token: float) -> RequiredWork:
    """`kv_bytes_per_token` is of all layers."""
    num_tokens = sum(row.num_computed_tokens for row in rows)
    num_logits = sum(row.num_output_tokens for row in rows)
    attention_flops = kv_tokens = 0.0
    for shape in model.layers:
        for row in rows:
            end = row.num_prompt_tokens + max(0, row.num_output_tokens - 1)
            keys = _num_keys(end, shape.sliding_window)
            attention_flops += shape.flops_per_key * (keys - _num_keys(row.num_shared_tokens, shape.sliding_window))
            kv_tokens += keys - _num_keys(row.num_prompt_tokens, shape.sliding_window) + row.num_prompt_tokens
    return RequiredWork(
        num_tokens,
        num_logits,
        gemm_flops=model.per_token * num_tokens + model.per_logit * num_logits,
        attention_flops=attention_flops,
        kv_bytes=kv_tokens * kv_bytes_per_token / max(1, len(model.layers)),
    )


def _num_keys(num_tokens: int, sliding_window: int) -> int:
    """That the queries of the first `num_tokens` tokens of a sequence look at, in all."""
    inside = num_tokens if not sliding_window else min(num_tokens, sliding_window)
    return inside * (inside + 1) // 2 + (num_tokens - inside) * sliding_window


def _num_common(first: np.ndarray, second: np.ndarray) -> int:
    """Tokens at the beginning of both."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length
