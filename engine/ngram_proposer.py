"""Drafts looked up in the sequence itself: what followed when its last tokens were there before.

Costs no model and is right where an answer copies: extraction, rewriting, code, anything that repeats itself. Known as
prompt lookup decoding (Saxena 2023) and as assisted generation by n-grams.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.engine.sequence import Sequence as TokenSequence

_TOKEN = "i"
_TOKEN_BYTES = array(_TOKEN).itemsize


class NgramProposer:
    """Continues the latest earlier occurrence of the last `max_length` tokens, or of fewer, at least `min_length`."""

    def __init__(self, min_length: int, max_length: int) -> None:
        self._min_length = min_length
        self._max_length = max_length
        self._texts: dict[TokenSequence, SearchableTokens] = {}

    def propose(self, sequences: Sequence[TokenSequence], num_tokens: int) -> list[list[int]]:
        self._texts = {
            sequence: self._texts.get(sequence) or SearchableTokens(sequence.token_ids) for sequence in sequences
        }
        return [text.continuation(self._min_length, self._max_length, num_tokens) for text in self._texts.values()]

    def reset(self) -> None:
        self._texts = {}


class SearchableTokens:
    """A list of tokens that grows, as bytes: those are searched at some GB/s, and nothing has to be kept about them.

    A step reads the keys and values of every token that is searched here, which are thousands of times as many bytes.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        """`token_ids` is kept, not copied."""
        self._token_ids = token_ids
        self._bytes = bytearray()

    def continuation(self, min_length: int, max_length: int, num_tokens: int) -> list[int]:
        """The `num_tokens` tokens behind the occurrence that agrees with the end of the list furthest back, up to
        `max_length` tokens; of several the latest. It goes on into what is proposed, where it reaches the end."""
        ids = self._token_ids
        self._bytes += array(_TOKEN, ids[len(self._bytes) // _TOKEN_BYTES :]).tobytes()
        for length in range(min(max_length, len(ids) - 1), min_length - 1, -1):
            if (begin := self._find_before_end(length)) >= 0:
                proposed = list(ids[begin + length : begin + length + num_tokens])
                period = len(proposed)
                return [proposed[index % period] for index in range(num_tokens)]
        return []

    def _find_before_end(self, length: int) -> int:
        """Where the last `length` tokens begin for the last time before the end; -1: they do not."""
        end = len(self._bytes) - _TOKEN_BYTES
        wanted = self._bytes[-length * _TOKEN_BYTES :]
        while (begin := self._bytes.rfind(wanted, 0, end)) >= 0:
            if begin % _TOKEN_BYTES == 0:
                return begin // _TOKEN_BYTES
            # Between the bytes of tokens.
            end = begin + len(wanted) - 1
        return -1
