"""The shapes of synthetic rows: how many, how long, what they share. Four of them have names.

Each row is one prompt: its group's prefix, then its own text. All rows ignore the end-of-sequence token, so that every
engine has the same work to do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infer.cli.errors import UsageError
from infer.cli.synthetic_text import SyntheticText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Span:
    """A length drawn evenly, both ends included."""

    low: int
    high: int

    def draw(self, source: random.Random) -> int:
        return source.randint(self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low}" if self.low == self.high else f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths in tokens; what a chat template adds is not counted."""

    num_rows: int
    prompt_tokens: Span
    """A row's own, behind what it shares."""
    output_tokens: Span
    shared_prefix_tokens: int = 0
    num_groups: int = 1
    """Each with a prefix of its own; rows of all groups are shuffled."""

    def __str__(self) -> str:
        prefix = (
            f"{self.shared_prefix_tokens} shared by each of {self.num_groups} groups, "
            if self.shared_prefix_tokens
            else ""
        )
        return f"{self.num_rows:,} rows, tokens: {prefix}{self.prompt_tokens} of their own, {self.output_tokens} out"


SHAPES = {
    "label-short": Shape(400, Span(40, 120), Span(8, 8), shared_prefix_tokens=350),
    "unique-gen": Shape(128, Span(60, 150), Span(128, 128)),
    "long-mixed": Shape(64, Span(50, 1500), Span(16, 256)),
    "grouped": Shape(256, Span(15, 40), Span(16, 16), shared_prefix_tokens=600, num_groups=16),
}


def parse_span(option: str, text: str) -> Span:
    """`100` or `50:150`.

    Raises:
        UsageError: it is neither.
    """
    low, _, high = text.partition(":")
    try:
        span = Span(int(low), int(high or low))
    except ValueError as error:
        raise UsageError(f"{option} takes a number or two, as in 50:150: {text}") from error
    if not 1 <= span.low <= span.high:
        raise UsageError(f"{option} must be at least 1, the smaller number first: {text}")
    return span


def make_rows(shape: Shape, count: Callable[[str], int], seed: int) -> Iterator[dict[str, object]]:
    """Rows of `prompt`, `max_tokens`, `ignore_eos`, `id` and `group`; the same for the same seed and tokenizer."""
    source = random.Random(seed)
    text = SyntheticText(count, seed)
    prefixes = [
        text.make(shape.shared_prefix_tokens) if shape.shared_prefix_tokens else "" for _ in range(shape.num_groups)
    ]
    groups = [index % shape.num_groups for index in range(shape.num_rows)]
    # Apart from the lengths, so that more rows begin with the same ones where there is one group.
    random.Random(seed).shuffle(groups)
    for index, group in enumerate(groups):
        own = text.make(shape.prompt_tokens.draw(source))
        yield {
            "id": index,
            "group": group,
            "prompt": f"{prefixes[group]}\n\n{own}" if prefixes[group] else own,
            "max_tokens": shape.output_tokens.draw(source),
            "ignore_eos": True,
        }
