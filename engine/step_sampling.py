"""From a step's logits to what each sequence gains by it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from infer.engine.speculative import accept_drafts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as Many

    import torch

    from infer.engine.sampler import Sampler
    from infer.engine.sampling_row import SamplingRow
    from infer.engine.sequence import Sequence
    from infer.engine.speculative import Run


def sample_runs(
    sampler: Sampler, logits: torch.Tensor, rows: Mapping[Sequence, Many[SamplingRow]]
) -> dict[Sequence, Run]:
    """What `rows` draw: of each sequence a token, and one more for each draft that was right; or one for each sequence
    that it is about to become.

    `logits` are `[num_logits, vocab_size]`: of each sequence those of its last token and of its drafts.
    """
    all_rows = [row for rows_of in rows.values() for row in rows_of]
    if not all_rows:
        return {}
    if len(all_rows) > len(logits):
        logits = logits[_indices(rows)]
    num_pending = [sequence.num_pending_tokens for sequence, rows_of in rows.items() for _ in rows_of]
    sampled = iter(sampler.sample(logits, all_rows, num_pending))
    return {
        sequence: accept_drafts(sequence, list(islice(sampled, len(rows_of)))) for sequence, rows_of in rows.items()
    }


def _indices(rows: Mapping[Sequence, Many[SamplingRow]]) -> list[int]:
    """Which of the logits each row draws from, where several draw from the same."""
    indices: list[int] = []
    first = 0
    for sequence, rows_of in rows.items():
        last = first + len(sequence.draft_token_ids)
        indices += [min(first + number, last) for number in range(len(rows_of))]
        first = last + 1
    return indices
