"""Drafts looked up in the sequence itself: what followed when its last tokens were there before.

Costs no model and is right where an answer copies: extraction, rewriting, code, anything that repeats itself. Known as
prompt lookup decoding (Saxena 2023) and as assisted generation by n-grams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.engine.sequence import Sequence as TokenSequence

_MAX_CANDIDATES = 8
"""Earlier occurrences that are compared; the latest ones, so a step's work does not grow with the sequence."""


class NgramProposer:
    """Continues an earlier occurrence of the last `max_length` tokens, or of fewer, at least `min_length`."""

    def __init__(self, min_length: int, max_length: int) -> None:
        self._min_length = min_length
        self._max_length = max_length
        self._indexes: dict[TokenSequence, NgramIndex] = {}

    def propose(self, sequences: Sequence[TokenSequence], num_tokens: int) -> list[list[int]]:
        self._indexes = {
            sequence: self._indexes.get(sequence) or NgramIndex(sequence.token_ids, self._min_length)
            for sequence in sequences
        }
        return [index.propose(self._max_length, num_tokens) for index in self._indexes.values()]

    def reset(self) -> None:
        self._indexes = {}


class NgramIndex:
    """Where each run of `length` tokens ends in a list that grows, latest first.

    token_ids   ... a b c ... a b d ... a b     the runs `a b` end at 1, 4 and 7; the last is what is looked up
    """

    def __init__(self, token_ids: Sequence[int], length: int) -> None:
        """`token_ids` is kept, not copied."""
        self._token_ids = token_ids
        self._length = length
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[int] = []
        """By end of a run: where the same run ended before, or -1."""

    def propose(self, max_length: int, num_tokens: int) -> list[int]:
        """The `num_tokens` tokens behind the occurrence that agrees with the end of the list furthest back, up to
        `max_length` tokens; of several the latest. It goes on into what is proposed, where it reaches the end."""
        self._extend()
        ids = self._token_ids
        end = max(self._candidates(), key=lambda end: self._num_agreeing(end, max_length), default=None)
        if end is None:
            return []
        proposed = list(ids[end + 1 : end + 1 + num_tokens])
        period = len(proposed)
        return [proposed[index % period] for index in range(num_tokens)]

    def _extend(self) -> None:
        """Enter all runs but the one at the end of the list, each once."""
        ids, length = self._token_ids, self._length
        for end in range(len(self._earlier), len(ids) - 1):
            run = tuple(ids[end - length + 1 : end + 1]) if end >= length - 1 else ()
            self._earlier.append(self._latest.get(run, -1))
            self._latest[run] = end

    def _candidates(self) -> list[int]:
        """Ends of earlier occurrences of the last `length` tokens, latest first."""
        ends: list[int] = []
        end = self._latest.get(tuple(self._token_ids[-self._length :]), -1)
        while end >= 0 and len(ends) < _MAX_CANDIDATES:
            ends.append(end)
            end = self._earlier[end]
        return ends

    def _num_agreeing(self, end: int, max_length: int) -> int:
        ids = self._token_ids
        length = self._length
        last = len(ids) - 1
        while length < max_length and end >= length and ids[end - length] == ids[last - length]:
            length += 1
        return length
