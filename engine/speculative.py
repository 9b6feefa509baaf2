"""Speculative decoding: several tokens of a sequence in one step, where somebody guessed them right.

Before a step a proposer guesses how sequences go on. The guesses, drafts, are computed along with the last token, so
the step has logits for what comes after it and after every draft. From each the sampler draws what it would draw if the
drafts before it were the answer; they are as long as each equals what was drawn in its place:

    last token  |  d1   d2   d3   d4      computed in one step
                v   v    v    v    v
    drawn       d1  d2   x    -    -      d1 and d2 were right: the step yields d1, d2 and x

Leviathan, Kalman and Matias (2023, section 2.3) accept a draft with probability min(1, p/q) and draw another from what
is left of p, which keeps the distribution. Here every draw is a function of the row's seed and the number of its
tokens, and a draft that is no draw itself is right with probability p(draft) either way. So to compare with what is
drawn anyway loses nothing and keeps the very tokens: the answer is the same with and without drafts, whatever they are.
(A row that fails, because some logits are not finite, may do so a few tokens earlier: what a draft computes is masked
from those before it by a factor of 0, and 0 times infinity is no number.)
"""

from __future__ import annotations

from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from infer.engine.draft_policy import AdaptiveDrafts, AllDrafts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from infer.engine.config import EngineConfig
    from infer.engine.draft_policy import DraftPolicy
    from infer.engine.sampler import SampledToken
    from infer.engine.sequence import Sequence as TokenSequence

    Run = list[SampledToken]


class Proposer(Protocol):
    """Guesses how sequences go on."""

    def propose(self, sequences: Sequence[TokenSequence], num_tokens: int) -> list[list[int]]:
        """Of each sequence at most `num_tokens` tokens, none where nothing comes to mind.

        What it knows of sequences that are not among these, it may forget.
        """
        ...

    def reset(self) -> None:
        """Forget what it knows of sequences: it may be half done."""
        ...


class Speculation(Protocol):
    """What the engine's step has to do with drafts."""

    def propose(self, running: Sequence[TokenSequence]) -> None:
        """Set the drafts of those that run, before the step is planned."""
        ...

    def observe(self, runs: Mapping[TokenSequence, Run], num_tokens: int, seconds: float) -> None:
        """What a step of `num_tokens` tokens sampled, and how long it took."""
        ...

    def reset(self) -> None:
        """A step has failed, or what was proposed for it."""
        ...


class NoSpeculation:
    """One token a step."""

    def propose(self, running: Sequence[TokenSequence]) -> None:
        pass

    def observe(self, runs: Mapping[TokenSequence, Run], num_tokens: int, seconds: float) -> None:
        pass

    def reset(self) -> None:
        pass


class Drafting:
    """Drafts of a proposer, as many as a policy finds worth computing."""

    def __init__(self, proposer: Proposer, policy: DraftPolicy) -> None:
        self._proposer = proposer
        self._policy = policy
        self._proposed: dict[TokenSequence, list[int]] = {}
        """Also what is not computed: whether it would have been right, the step tells all the same."""

    def propose(self, running: Sequence[TokenSequence]) -> None:
        self._proposed = {}
        decoding = [
            each for each in running if each.num_computed_tokens == each.num_tokens - 1 and each.max_draft_tokens > 0
        ]
        num_tokens = self._policy.num_to_propose(decoding)
        if not num_tokens:
            return
        begin = perf_counter()
        proposed = self._proposer.propose(decoding, num_tokens)
        self._policy.observe_proposing(num_tokens, perf_counter() - begin)
        self._proposed = dict(zip(decoding, proposed, strict=True))
        for sequence, num_drafts in zip(decoding, self._policy.choose(decoding, proposed), strict=True):
            sequence.draft_token_ids = self._proposed[sequence][:num_drafts]

    def observe(self, runs: Mapping[TokenSequence, Run], num_tokens: int, seconds: float) -> None:
        self._policy.observe_step(num_tokens, seconds)
        for sequence, run in runs.items():
            if proposed := self._proposed.get(sequence):
                num_right = num_equal(proposed, _token_ids(run))
                # One more was put to the test, where there was one more and the run went on.
                self._policy.observe_drafts(sequence, num_right, min(len(proposed), len(run), num_right + 1))

    def reset(self) -> None:
        self._proposed = {}
        self._proposer.reset()


def make_speculation(config: EngineConfig, proposer: Proposer) -> Speculation:
    """As `config` asks for."""
    if config.speculative == "off":
        return NoSpeculation()
    policy: DraftPolicy = AllDrafts(config.num_speculative_tokens)
    if config.speculative == "auto":
        policy = AdaptiveDrafts(config.num_speculative_tokens, config.max_num_draft_tokens)
    return Drafting(proposer, policy)


def accept_drafts(sequence: TokenSequence, drawn: Run) -> Run:
    """Of what was drawn after a sequence's last token and after each of its drafts, what is part of its answer."""
    drafts = sequence.draft_token_ids
    return drawn[: num_equal(drafts, _token_ids(drawn)) + 1] if drafts else drawn


def num_equal(left: Iterable[int], right: Iterable[int]) -> int:
    """Of what both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _token_ids(run: Run) -> list[int]:
    return [token.token_id for token in run]
