"""How long answers become, learned from those that ended and from those that have not ended yet.

The share of `max_tokens` that answers use is estimated as a survival curve (Kaplan & Meier 1958): answers that end
early are seen first, and their mean alone would be far too short. Until some have been seen to end before, all are
taken to run to `max_tokens`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_NUM_BINS = 64
"""Of the share of `max_tokens`, from 0 to 1."""

_PRIOR_ANSWERS = 2.0
"""So many answers are believed to run to the end, whatever is seen."""


class OutputLengths:
    """The distribution of output lengths relative to `max_tokens`."""

    def __init__(self) -> None:
        self._num_ended = np.zeros(_NUM_BINS + 1)
        """By bin; the last are those at the limit."""

    def observe(self, num_tokens: int, max_tokens: int) -> None:
        """An answer has ended, by itself or at the limit."""
        self._num_ended[_bins(num_tokens / max_tokens)] += 1

    def predict(self, num_tokens: Floats, max_tokens: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of what unfinished answers of `num_tokens` will end at, in tokens; `[num_answers]` each."""
        bins = np.minimum(_bins(num_tokens / max_tokens), _NUM_BINS - 1)
        reached = self._reached(bins)
        index = np.arange(_NUM_BINS)
        # Of an answer in bin p: the bins from p on that it will reach, and the square of their number.
        sums, moments = (np.cumsum((weight * reached)[::-1])[::-1] for weight in (np.ones(_NUM_BINS), 2 * index + 1))
        mean = sums / reached
        variance = (moments - 2 * index * sums) / reached - mean**2
        bin_tokens = max_tokens / _NUM_BINS
        expected = np.minimum((bins + mean[bins]) * bin_tokens, max_tokens)
        return np.maximum(expected, num_tokens + 1), np.maximum(variance[bins], 0.0) * bin_tokens**2

    def _reached(self, unfinished: NDArray[np.int64]) -> Floats:
        """Share of answers that reach each bin. Those of `unfinished` have passed the bins before theirs."""
        ended = self._num_ended
        at_risk = ended[::-1].cumsum()[::-1][:-1]
        passed = np.bincount(unfinished, minlength=_NUM_BINS + 1)[::-1].cumsum()[::-1][1:]
        survival = np.cumprod(1.0 - ended[:-1] / (at_risk + passed + _PRIOR_ANSWERS))
        return np.concatenate([[1.0], survival[:-1]])


def _bins(shares: float | Floats) -> NDArray[np.int64]:
    bins: NDArray[np.int64] = np.minimum(np.asarray(shares) * _NUM_BINS, _NUM_BINS).astype(np.int64)
    return bins
