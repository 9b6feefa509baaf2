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

from typing import TYPE_CHECKING, Protocol

import numpy as np

from infer.engine.block_pool import NULL_BLOCK_ID
from infer.engine.output_lengths import OutputLengths

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from numpy.typing import NDArray

    from infer.engine.block import Block
    from infer.engine.kv_cache_manager import KVCacheManager
    from infer.engine.preemption import Rank
    from infer.engine.sequence import Sequence

    Floats = NDArray[np.float64]

_NUM_DEVIATIONS = 1.0
"""Of the lengths' sum, kept as a reserve."""


class Admission(Protocol):
    """Says of those that wait whether to begin them."""

    def begin(self, running: list[Sequence]) -> None:
        """Called once a step before the first `admits`, and again where somebody was preempted since."""

    def admits(self, sequence: Sequence, cached_blocks: Many[Block]) -> bool:
        """Whether all that run will have room with `sequence` among them. Alone it always has."""

    def observe(self, sequence: Sequence) -> None:
        """`sequence` has ended."""


class OpenAdmission:
    """Begins whoever has room now."""

    def begin(self, running: list[Sequence]) -> None: ...

    def admits(self, sequence: Sequence, cached_blocks: Many[Block]) -> bool:
        return True

    def observe(self, sequence: Sequence) -> None: ...


class ForesightedAdmission:
    """Looks ahead over the sequences that run.

    Those of a lower class than the one that waits are not looked at: they would give way.
    """

    def __init__(self, kv_cache_manager: KVCacheManager, rank: Callable[[Sequence], Rank]) -> None:
        self._manager = kv_cache_manager
        self._rank = rank
        self._lengths = OutputLengths()
        self._running: list[Sequence] = []
        self._ahead: dict[int, _Ahead] = {}
        """By class."""
        self._refused: tuple[Sequence, int] | None = None
        """With how many running. Until one of them leaves, they only need more."""

    def observe(self, sequence: Sequence) -> None:
        self._lengths.observe(len(sequence.output_token_ids), sequence.max_output_tokens)

    def begin(self, running: list[Sequence]) -> None:
        self._running = running
        self._ahead = {}
        if self._refused is not None and self._refused[1] != len(running):
            self._refused = None

    def admits(self, sequence: Sequence, cached_blocks: Many[Block]) -> bool:
        if self._refused is not None and self._refused[0] is sequence:
            return False
        priority = self._rank(sequence)[0]
        if priority not in self._ahead:
            served = [other for other in self._running if self._rank(other)[0] <= priority]
            self._ahead[priority] = _Ahead(self._manager, self._lengths, served)
        has_room = self._ahead[priority].has_room_for(sequence, cached_blocks)
        if not has_room:
            self._refused = sequence, len(self._running)
        return has_room


class _Ahead:
    """The blocks of some sequences from now on. Those admitted in the step are added as they come."""

    def __init__(self, manager: KVCacheManager, lengths: OutputLengths, sequences: list[Sequence]) -> None:
        self._block_size = manager.block_size
        self._num_blocks = manager.pool.num_blocks
        shared = [_shared_blocks(sequence.block_table) for sequence in sequences]
        # Counted once, and as if they stayed for ever: whoever shares a prefix goes on sharing it.
        self._num_shared = len({block.block_id for blocks in shared for block in blocks} - {NULL_BLOCK_ID})
        output, limits = _outputs(sequences), _limits(sequences)
        self._forecast = lengths.forecast(output, limits)
        pairs = zip(sequences, shared, strict=True)
        own = _own([each.num_tokens - self._block_size * len(blocks) for each, blocks in pairs], sequences)
        expected, variance = self._forecast.lengths(output, limits)
        self._state = own, expected - output, variance
        """Of each sequence: tokens that are its alone, tokens that it will still generate, and their variance."""

    def has_room_for(self, sequence: Sequence, cached_blocks: Many[Block]) -> bool:
        output, limits = _outputs([sequence]), _limits([sequence])
        expected, variance = self._forecast.lengths(output, limits)
        num_held = sum(block.ref_cnt > 0 for block in cached_blocks)
        own = _own([sequence.num_tokens - num_held * self._block_size], [sequence])
        one = own, expected - output, variance
        grown = tuple(np.concatenate(pair) for pair in zip(self._state, one, strict=True))
        is_alone = len(self._state[0]) == 0
        if not is_alone and self._peak(*grown) + self._num_shared > self._num_blocks:
            return False
        self._state = grown  # type: ignore[assignment]
        return True

    def _peak(self, own: Floats, left: Floats, variance: Floats) -> float:
        order = np.argsort(left)
        own, left, variance = own[order], left[order], variance[order]
        # Just before the k-th ends, it and all that end later are there, each with a block that is half empty.
        still_there = np.arange(len(left), 0, -1)
        held, spread = (values[::-1].cumsum()[::-1] for values in (own, variance))
        peaks = (held + still_there * left + _NUM_DEVIATIONS * np.sqrt(spread)) / self._block_size + still_there / 2
        return float(peaks.max())


def _shared_blocks(block_table: list[Block]) -> list[Block]:
    """Those at its beginning that others hold, too, or that it has given back."""
    end = next((index for index, block in enumerate(block_table) if block.ref_cnt == 1), len(block_table))
    return block_table[:end]


def _branches(sequences: list[Sequence], values: list[int]) -> Floats:
    """Of every sequence that each of `sequences` will become, what `values` says of it."""
    pairs = zip(values, sequences, strict=True)
    return np.array([value for value, sequence in pairs for _ in range(sequence.num_branches)], np.float64)


def _own(num_tokens: list[int], sequences: list[Sequence]) -> Floats:
    """What is there before a sequence is forked counts once."""
    counts: list[int] = []
    for value, sequence in zip(num_tokens, sequences, strict=True):
        counts += [value, *[0] * (sequence.num_branches - 1)]
    return np.array(counts, np.float64)


def _outputs(sequences: list[Sequence]) -> Floats:
    return _branches(sequences, [len(sequence.output_token_ids) for sequence in sequences])


def _limits(sequences: list[Sequence]) -> Floats:
    return _branches(sequences, [sequence.max_output_tokens for sequence in sequences])
