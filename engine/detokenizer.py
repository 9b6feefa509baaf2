"""Text of a finished request: all its tokens decoded at once, so that a character spread over tokens is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from infer.engine.stopping import Stop


def detokenize(output_token_ids: Sequence[int], stop: Stop, decode: Callable[[Sequence[int]], str]) -> str:
    """What a request generated, without an EOS or stop token, up to the stop string that ended it."""
    return decode(output_token_ids[: stop.num_text_tokens])[: stop.num_text_chars]
