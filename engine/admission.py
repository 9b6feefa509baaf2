"""Admission: whether there will be room for one sequence more, not only now.

Everyone who runs grows by a token a step until it ends, and gives its blocks back then. So the tightest moments are
those just before an end; they are computed ahead, with the lengths that answers are expected to have.

    blocks  |        . peak
            |    . /|   . peak
            |  /    | /   |
            | /     |/    |____
            '--------------------> steps ahead
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infer.engine.output_lengths import OutputLengths

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from infer.engine.block import Block
    from infer.engine.kv_cache_manager import KVCacheManager
    from infer.engine.sequence import Sequence

_NUM_DEVIATIONS = 1.0
"""Of the lengths' sum, kept as a reserve."""


class Admission:
    """Looks ahead over the sequences that run. `begin` is called once a step, before the first `admits`."""

    def __init__(self, kv_cache_manager: KVCacheManager) -> None:
        self._manager = kv_cache_manager
        self._lengths = OutputLengths()
        self._running: list[Sequence] = []
        self._ahead: _Ahead | None = None
        self._refused: tuple[Sequence, int] | None = None
        """With how many running. Until one of them leaves, they only need more."""

    def observe(self, sequence: Sequence) -> None:
        """`sequence` has ended."""
        self._lengths.observe(len(sequence.output_token_ids), sequence.request.sampling_params.max_tokens)

    def begin(self, running: list[Sequence]) -> None:
        self._running = running
        self._ahead = None
        if self._refused is not None and self._refused[1] != len(running):
            self._refused = None

    def admits(self, sequence: Sequence, cached_blocks: Many[Block]) -> bool:
        """Whether all that run will have room with `sequence` among them. Alone it always has."""
        if not self._running:
            return True
        if self._refused is not None and self._refused[0] is sequence:
            return False
        if self._ahead is None:
            self._ahead = _Ahead(self._manager, self._lengths, self._running)
        has_room = self._ahead.has_room_for(sequence, sum(block.ref_cnt > 0 for block in cached_blocks))
        if not has_room:
            self._refused = sequence, len(self._running)
        return has_room


class _Ahead:
    """The blocks of a step's sequences from now on. Those admitted in the step are added as they come."""

    def __init__(self, manager: KVCacheManager, lengths: OutputLengths, running: list[Sequence]) -> None:
        self._lengths = lengths
        self._block_size = manager.block_size
        self._num_blocks = manager.pool.num_blocks
        num_held = manager.pool.num_blocks - manager.pool.num_free_blocks
        self._num_shared = sum(len(sequence.block_table) for sequence in running) - num_held
        """Blocks that are counted once for each of several holders."""
        self._tokens, self._left, self._variance = self._expect(running)

    def has_room_for(self, sequence: Sequence, num_shared: int) -> bool:
        grown = [np.concatenate(pair) for pair in zip(self._state(), self._expect([sequence]), strict=True)]
        if self._peak(*grown) - self._num_shared - num_shared > self._num_blocks:
            return False
        self._tokens, self._left, self._variance = grown
        self._num_shared += num_shared
        return True

    def _state(self) -> tuple[np.ndarray, ...]:
        return self._tokens, self._left, self._variance

    def _expect(self, sequences: list[Sequence]) -> tuple[np.ndarray, ...]:
        """Tokens that each holds once it is caught up, tokens that it will still generate, and their variance."""
        tokens = np.array([sequence.num_tokens for sequence in sequences], np.float64)
        num_output = np.array([len(sequence.output_token_ids) for sequence in sequences], np.float64)
        limits = np.array([sequence.request.sampling_params.max_tokens for sequence in sequences], np.float64)
        expected, variance = self._lengths.predict(num_output, limits)
        return tokens, expected - num_output, variance

    def _peak(self, tokens: np.ndarray, left: np.ndarray, variance: np.ndarray) -> float:
        order = np.argsort(left)
        tokens, left, variance = tokens[order], left[order], variance[order]
        # Just before the k-th ends, it and all that end later are there, each with a block that is half empty.
        still_there = np.arange(len(left), 0, -1)
        held, spread = (values[::-1].cumsum()[::-1] for values in (tokens, variance))
        peaks = (held + still_there * left + _NUM_DEVIATIONS * np.sqrt(spread)) / self._block_size + still_there / 2
        return float(peaks.max())
