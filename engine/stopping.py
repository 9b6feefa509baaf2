"""When a request ends: EOS, stop ids, stop strings across token borders, length limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from infer.engine.request import FinishReason
    from infer.engine.sampling_params import SamplingParams

_SLACK = 8
"""Characters by which the decoding of a tail may differ at its start: a torn character, a stripped space."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a request ended, and how much of what it generated is its text."""

    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or stop token id; None for EOS and length."""
    num_text_tokens: int
    """The text is the decoding of so many output tokens: an EOS or stop token at the end is not part of it."""
    num_text_chars: int | None = None
    """Of which so many characters are kept, up to the stop string; None keeps all."""


class StopChecker:
    """Decides after each token whether one request has ended. Made once a request; holds no state of its generation.

    `max_tokens` is the limit of the answer, `decode` turns token ids into text without special tokens.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        max_tokens: int,
        eos_token_ids: Collection[int],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._eos_token_ids = frozenset(() if params.ignore_eos else eos_token_ids)
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._stop_strings = params.stop
        self._min_tokens = params.min_tokens
        self._max_tokens = max_tokens
        self._longest = max(map(len, params.stop), default=0)
        self._decode = decode

    def check(self, output_token_ids: Sequence[int]) -> Stop | None:
        """Whether the last of `output_token_ids` ends the request; to be asked after every single token.

        A stop beats a limit that is reached at the same token. Nothing within the first `min_tokens` tokens stops.
        """
        num_tokens = len(output_token_ids)
        if num_tokens > self._min_tokens:
            last = output_token_ids[-1]
            if last in self._eos_token_ids:
                return Stop("stop", None, num_tokens - 1)
            if last in self._stop_token_ids:
                return Stop("stop", last, num_tokens - 1)
            if self._stop_strings and (stop := self._check_stop_strings(output_token_ids)):
                return stop
        return Stop("length", None, num_tokens) if num_tokens >= self._max_tokens else None

    def _check_stop_strings(self, output_token_ids: Sequence[int]) -> Stop | None:
        tail = self._tail_text(output_token_ids)
        if not any(stop in tail for stop in self._stop_strings):
            return None
        text = self._decode(output_token_ids)
        # A character that the exempt tokens leave torn is completed by a later one.
        exempt = self._decode(output_token_ids[: self._min_tokens]).rstrip("\ufffd") if self._min_tokens else ""
        found = _first_stop_string(text, self._stop_strings, len(exempt))
        if found is None:
            return None
        begin, stop = found
        return Stop("stop", stop, len(output_token_ids), begin)

    def _tail_text(self, output_token_ids: Sequence[int]) -> str:
        """Text of the last few tokens, enough for every stop string that the last token can have completed.

        Counted in characters, because a token can be long, a byte of a character, or no text at all.
        """
        num_chars = self._longest + len(self._decode(output_token_ids[-1:])) + _SLACK
        num_tokens = self._longest // 2 + _SLACK
        text = self._decode(output_token_ids[-num_tokens:])
        while len(text) < num_chars and num_tokens < len(output_token_ids):
            num_tokens *= 2
            text = self._decode(output_token_ids[-num_tokens:])
        return text


def _first_stop_string(text: str, stop_strings: Sequence[str], num_exempt_chars: int) -> tuple[int, str] | None:
    """Where the stop string that is complete first begins; it ends after the exempt characters.

    The first complete one, whatever the tokens: "abc" with the stops "abc" and "b" ends after "a" also when "abc" is
    one token. Of two that end together the longer counts.
    """
    found = []
    for stop in stop_strings:
        begin = text.find(stop, max(0, num_exempt_chars - len(stop) + 1))
        if begin >= 0:
            found.append((begin + len(stop), begin, stop))
    return min(found)[1:] if found else None
