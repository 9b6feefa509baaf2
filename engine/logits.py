"""What changes the logits before a token is chosen: barred and favoured tokens, then the penalties.

Both change `logits` (float32 [num_rows, vocab_size], contiguous) in place, and only where a row asks for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from infer.engine.sampling_row import LogitsRules, SamplingRow


def apply_rules(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Bar all but the allowed tokens, bad words, and ends before `min_tokens`; then add the biases.

    Rows that share their rules are done together.
    """
    sharers: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        if row.rules is not None:
            sharers.setdefault(id(row.rules), []).append(index)
    for indices in sharers.values():
        rules = rows[indices[0]].rules
        assert rules is not None
        if rules.allowed is not None:
            kept = logits[_cells(logits, indices, rules.allowed)]
            logits[torch.tensor(indices, device=logits.device)] = -math.inf
            logits[_cells(logits, indices, rules.allowed)] = kept
        early = [index for index in indices if len(rows[index].output_token_ids) < rules.min_tokens]
        for barred, ids in ((indices, rules.banned), (early, rules.stopping)):
            if barred and ids.size:
                logits[_cells(logits, barred, ids)] = -math.inf
        for index in indices:
            for token_id in _completions(rules, rows[index].output_token_ids):
                logits[index, token_id] = -math.inf
        if rules.biased.size:
            logits[_cells(logits, indices, rules.biased)] += _to(logits, rules.biases)


def apply_penalties(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Penalise tokens that are there already: `repetition_penalty` those of prompt and output (CTRL, arXiv 1909.05858,
    section 4.1), then `frequency_penalty` each occurrence in the output and `presence_penalty` any.
    """
    _penalise_repetition(logits, rows)
    _penalise_output(logits, rows)


def _penalise_repetition(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    indices = [index for index, row in enumerate(rows) if row.params.repetition_penalty != 1.0]
    if not indices:
        return
    seen = [[rows[index].prompt_vocabulary, _ids(rows[index].output_token_ids)] for index in indices]
    positions = _flat_positions(logits, indices, [np.concatenate(ids) for ids in seen])
    penalties = np.array([row.params.repetition_penalty for row in rows], np.float32)[positions // logits.shape[-1]]
    scores, where, factors = logits.view(-1), _to(logits, positions), _to(logits, penalties)
    before = scores[where]
    # A token may be there twice: both times it is given the same score, made from the one before.
    scores[where] = torch.where(before > 0, before / factors, before * factors)


def _penalise_output(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    indices = [index for index, row in enumerate(rows) if row.params.frequency_penalty or row.params.presence_penalty]
    if not indices:
        return
    positions = _flat_positions(logits, indices, [_ids(rows[index].output_token_ids) for index in indices])
    positions, counts = np.unique(positions, return_counts=True)
    owners = [rows[index].params for index in positions // logits.shape[-1]]
    frequency = np.array([params.frequency_penalty for params in owners], np.float32)
    presence = np.array([params.presence_penalty for params in owners], np.float32)
    logits.view(-1)[_to(logits, positions)] -= _to(logits, frequency * counts.astype(np.float32) + presence)


def _completions(rules: LogitsRules, output_token_ids: Sequence[int]) -> Iterable[int]:
    """Tokens that would complete a bad word whose other tokens are the last of the output."""
    for *others, last in rules.banned_sequences:
        if list(output_token_ids[-len(others) :]) == others:
            yield last


def _cells(logits: Tensor, indices: Sequence[int], token_ids: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Index of the same tokens in several rows."""
    return torch.tensor(indices, device=logits.device)[:, None], _to(logits, token_ids)


def _flat_positions(
    logits: Tensor, indices: Sequence[int], token_ids: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Where each row's own tokens stand in the flat logits."""
    return np.concatenate([ids + index * logits.shape[-1] for index, ids in zip(indices, token_ids, strict=True)])


def _ids(token_ids: Sequence[int]) -> NDArray[np.int64]:
    return np.array(token_ids, np.int64)


def _to(logits: Tensor, values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values).to(logits.device)
