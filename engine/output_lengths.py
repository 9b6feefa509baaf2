"""How long answers become, learned from those that ended and from those that have not ended yet.

The share of its limit that an answer uses is estimated as a survival curve (Kaplan & Meier 1958): answers that end
early are seen first, and their mean alone would be far too short. Until some have been seen to end before, all are
taken to run to their limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_NUM_BINS = 64
"""Of the share, from 0 to 1. They grow with it, since a limit is often far beyond what answers need."""

_EDGES = (np.arange(_NUM_BINS + 1) / _NUM_BINS) ** 2

_PRIOR_ANSWERS = 2.0
"""So many answers are believed to run to the end, whatever is seen."""


class OutputLengths:
    """The distribution of output lengths relative to their limits."""

    def __init__(self) -> None:
        self._num_ended = np.zeros(_NUM_BINS + 1)
        """By bin; the last are those at the limit."""

    def observe(self, num_tokens: int, limit: int) -> None:
        """An answer has ended, by itself or at its limit."""
        self._num_ended[_bins(num_tokens / limit)] += 1

    def forecast(self, num_tokens: Floats, limits: Floats) -> Forecast:
        """What is to be expected, given that so many answers of `num_tokens` have not ended."""
        bins = _bins(num_tokens / limits)
        passed = np.bincount(bins, minlength=_NUM_BINS + 1)[::-1].cumsum()[::-1][1:]
        at_risk = self._num_ended[::-1].cumsum()[::-1][:-1] + passed + _PRIOR_ANSWERS
        survival = np.cumprod(1.0 - self._num_ended[:-1] / at_risk)
        return Forecast(np.concatenate([[1.0], survival[:-1]]))


class Forecast:
    """Expected lengths, by how far answers are. `reached` is the share of them that reaches each bin."""

    def __init__(self, reached: Floats) -> None:
        starts, ends = _EDGES[:-1], _EDGES[1:]
        # Of an answer in a bin: what it still covers from the bin's start on, and the square of that.
        covered, moments = (_sums_from(reached * weight) for weight in (ends - starts, ends**2 - starts**2))
        mean = covered / reached
        self._mean = starts + mean
        self._variance = np.maximum((moments - 2 * starts * covered) / reached - mean**2, 0.0)

    def lengths(self, num_tokens: Floats, limits: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of what unfinished answers of `num_tokens` will end at, in tokens; `[num_answers]` each."""
        bins = np.minimum(_bins(num_tokens / limits), _NUM_BINS - 1)
        expected = np.minimum(self._mean[bins] * limits, limits)
        return np.maximum(expected, num_tokens + 1), self._variance[bins] * limits**2


def _sums_from(values: Floats) -> Floats:
    """Of each element and all behind it."""
    sums: Floats = values[::-1].cumsum()[::-1]
    return sums


def _bins(shares: float | Floats) -> NDArray[np.int64]:
    bins: NDArray[np.int64] = np.minimum(np.sqrt(shares) * _NUM_BINS, _NUM_BINS).astype(np.int64)
    return bins
