"""SampledIds: the tokens that a step has sampled, on the device and on their way to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infer.engine.sampler import sampled_token

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from infer.engine.batch import Batch
    from infer.engine.sequence import Sequence
    from infer.engine.speculative import Run


class SampledIds:
    """One token of each of `sequences`. The copy to the host begins now; only `read` waits for it."""

    def __init__(self, sequences: Many[Sequence], token_ids: torch.Tensor) -> None:
        """token_ids: int64 `[num_sequences]`, -1 where there is none"""
        self.sequences = sequences
        self._token_ids = token_ids
        self._places = {sequence: place for place, sequence in enumerate(sequences)}
        self._host_ids = token_ids
        self._is_read: torch.cuda.Event | None = None
        if token_ids.is_cuda:
            self._host_ids = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=True)
            self._host_ids.copy_(token_ids, non_blocking=True)
            self._is_read = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._is_read.record()

    def fill_in(self, batch: Batch, places: torch.Tensor, sources: torch.Tensor) -> None:
        """Put the tokens at `sources` into the places of the batch that are left for them. What is no token is computed
        as one all the same: its sequence is about to fail."""
        batch.input_ids[0].index_copy_(0, places, self._token_ids[sources].clamp(min=0))

    def places_of(self, sequences: Many[Sequence]) -> list[int]:
        return [self._places[sequence] for sequence in sequences]

    def read(self) -> dict[Sequence, Run]:
        if self._is_read is not None:
            self._is_read.synchronize()
        return {
            sequence: [sampled_token(token_id)]
            for sequence, token_id in zip(self.sequences, self._host_ids.tolist(), strict=True)
        }
