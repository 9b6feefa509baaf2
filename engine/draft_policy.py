"""How many drafts are worth computing: an answer never depends on it, only the time that it takes.

A step costs something however few tokens it has (weights are read, kernels started), and something for each token. With
few sequences the first is nearly all of it, and a draft is nearly free; with many it costs as much as a token and gives
less. So a draft is computed where the chance that it is right is greater than what it costs of the time of one token:

    tokens a step yields     n + sum of the chances
    -------------------- =  ------------------------     a draft that raises it is taken, the likeliest first
    seconds a step takes     fixed + each * (n + drafts)

Chances and costs are measured while the job runs.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.engine.sequence import Sequence as TokenSequence

_STEPS_REMEMBERED = 9
"""Of each size of steps; the median leaves out those that were disturbed."""

_FREE = 0.01
"""Share of a step that proposing may cost and be done anyway, to learn how often it is right."""

_TRIAL_EVERY = 32
"""Steps after which proposing that costs more is tried again."""

_MEMORY = 0.95
"""A test weighs so much less with each that comes after it: texts begin and cease to repeat themselves."""

_PRIOR_CHANCE = 0.5
_PRIOR_TESTS = 4.0
"""Weight of what is known of all sequences in what is expected of one, in tests."""


class DraftPolicy(Protocol):
    """Decides before a step how many drafts are made, then how many are computed."""

    def num_to_propose(self, sequences: Sequence[TokenSequence]) -> int:
        """Most drafts of a sequence that are worth being proposed; 0 proposes none."""
        ...

    def choose(self, sequences: Sequence[TokenSequence], proposed: Sequence[Sequence[int]]) -> list[int]:
        """How many of each sequence's proposed drafts are computed."""
        ...

    def observe_proposing(self, num_tokens: int, seconds: float) -> None:
        """What it took to propose so many drafts of each sequence."""
        ...

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """What a step of so many tokens took."""
        ...

    def observe_drafts(self, sequence: TokenSequence, num_right: int, num_tested: int) -> None:
        """How many of the first `num_tested` drafts proposed for `sequence` were right: all, or all but the last."""
        ...


class AllDrafts:
    """Computes whatever is proposed."""

    def __init__(self, max_drafts: int) -> None:
        self._max_drafts = max_drafts

    def num_to_propose(self, sequences: Sequence[TokenSequence]) -> int:
        return self._max_drafts

    def choose(self, sequences: Sequence[TokenSequence], proposed: Sequence[Sequence[int]]) -> list[int]:
        return [len(drafts) for drafts in proposed]

    def observe_proposing(self, num_tokens: int, seconds: float) -> None:
        pass

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        pass

    def observe_drafts(self, sequence: TokenSequence, num_right: int, num_tested: int) -> None:
        pass


class AdaptiveDrafts:
    """Computes the drafts that are expected to save time, at most `max_in_step` in a step."""

    def __init__(self, max_drafts: int, max_in_step: int) -> None:
        self._max_drafts = max_drafts
        self._max_in_step = max_in_step
        self._step_cost = StepCost()
        self._proposing: deque[float] = deque([0.0], maxlen=_STEPS_REMEMBERED)
        """Seconds that a draft of every sequence took; the 0 lets the first ones be made, to learn from. The least
        counts: at times a proposer has to catch up."""
        self._steps_without = 0
        self._all = _Chance()
        self._chances: dict[TokenSequence, _Chance] = {}

    def num_to_propose(self, sequences: Sequence[TokenSequence]) -> int:
        self._chances = {sequence: self._chances[sequence] for sequence in sequences if sequence in self._chances}
        if not sequences:
            return 0
        num_tokens = self._num_worth_proposing(len(sequences))
        if not num_tokens and self._steps_without < _TRIAL_EVERY:
            self._steps_without += 1
            return 0
        self._steps_without = 0
        return num_tokens or self._max_drafts

    def choose(self, sequences: Sequence[TokenSequence], proposed: Sequence[Sequence[int]]) -> list[int]:
        candidates = []
        for index, (sequence, drafts) in enumerate(zip(sequences, proposed, strict=True)):
            chance = self._chance(sequence)
            candidates += [(chance**position, index) for position in range(1, len(drafts) + 1)]
        counts = [0] * len(sequences)
        fixed, each = self._step_cost.line()
        expected, num_computed = float(len(sequences)), len(sequences)
        for chance, index in sorted(candidates, reverse=True)[: self._max_in_step]:
            if chance * (fixed + each * num_computed) <= each * expected:
                break
            counts[index] += 1
            expected += chance
            num_computed += 1
        return counts

    def observe_proposing(self, num_tokens: int, seconds: float) -> None:
        self._proposing.append(seconds / num_tokens)

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        self._step_cost.observe(num_tokens, seconds)

    def observe_drafts(self, sequence: TokenSequence, num_right: int, num_tested: int) -> None:
        self._all.observe(num_right, num_tested)
        self._chances.setdefault(sequence, _Chance()).observe(num_right, num_tested)

    def _chance(self, sequence: TokenSequence) -> float:
        """That a draft is right where all before it are."""
        prior = self._all.estimate(_PRIOR_CHANCE)
        return self._chances[sequence].estimate(prior) if sequence in self._chances else prior

    def _num_worth_proposing(self, num_sequences: int) -> int:
        """Of every sequence alike: as many as give the most tokens a second; all where proposing costs nothing."""
        fixed, each = self._step_cost.line()
        step_seconds = fixed + each * num_sequences
        proposing = min(self._proposing)
        if proposing * self._max_drafts <= _FREE * step_seconds:
            return self._max_drafts
        chance = self._all.estimate(_PRIOR_CHANCE)

        def rate(num_drafts: int) -> float:
            expected = num_sequences * sum(chance**position for position in range(num_drafts + 1))
            return expected / (step_seconds + num_drafts * (proposing + each * num_sequences))

        return max(range(self._max_drafts + 1), key=rate)


class _Chance:
    """How often the first drafts that were not yet known to be wrong were right, lately."""

    def __init__(self) -> None:
        self._num_right = 0.0
        self._num_tested = 0.0

    def observe(self, num_right: int, num_tested: int) -> None:
        kept = _MEMORY**num_tested
        self._num_right = self._num_right * kept + num_right
        self._num_tested = self._num_tested * kept + num_tested

    def estimate(self, prior: float) -> float:
        return (self._num_right + _PRIOR_TESTS * prior) / (self._num_tested + _PRIOR_TESTS)


class StepCost:
    """Seconds of a step as a straight line over its tokens, through the medians of steps of each size."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[tuple[int, float]]] = {}
        """By the size's number of binary digits. Kept however long ago: sizes come and go with the batch."""
        self._medians: dict[int, tuple[float, float]] = {}

    def observe(self, num_tokens: int, seconds: float) -> None:
        if not num_tokens:
            return
        size = num_tokens.bit_length()
        recent = self._recent.setdefault(size, deque(maxlen=_STEPS_REMEMBERED))
        recent.append((num_tokens, seconds))
        self._medians[size] = median(tokens for tokens, _ in recent), median(seconds for _, seconds in recent)

    def line(self) -> tuple[float, float]:
        """Seconds of a step without tokens, and of each token; neither is negative.

        Deviations count in proportion to the step, so that a long one does not outweigh all short ones. Sizes that say
        nothing of the slope leave it at 0: then drafts seem free, and are tried, and another size is known.
        """
        weights = [(tokens, seconds, seconds**-2) for tokens, seconds in self._medians.values()]
        total = sum(weight for *_, weight in weights)
        if not weights:
            return 0.0, 0.0
        mean_tokens = sum(weight * tokens for tokens, _, weight in weights) / total
        mean_seconds = sum(weight * seconds for _, seconds, weight in weights) / total
        spread = sum(weight * (tokens - mean_tokens) ** 2 for tokens, _, weight in weights)
        rise = sum(weight * (tokens - mean_tokens) * (seconds - mean_seconds) for tokens, seconds, weight in weights)
        each = min(max(0.0, rise / spread if spread else 0.0), mean_seconds / mean_tokens)
        return mean_seconds - each * mean_tokens, each
