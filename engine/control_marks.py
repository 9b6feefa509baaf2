"""Marks that are put around control tokens in a row's text, and found again in what a template has made of it.

They occur nowhere in the row. They are symbols: a template that asks for letters, digits, spaces or upper case passes
over them, and `repr`, by which a template writes a list, leaves them alone. As JSON in ASCII they
are escapes, and are found all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_CANDIDATES = (range(0x2801, 0x2900), range(0x4DC0, 0x4E00), range(0xF0000, 0xFFFFE))
"""Braille patterns and hexagrams; where a row has them all, the private use plane."""


@dataclass(frozen=True, slots=True)
class ControlMarks:
    """`opening` and `closing` stand around a control token, `edge` beside a text that could be completed to one."""

    opening: str
    closing: str
    edge: str

    def pattern(self, contents: str) -> str:
        """Finds in a rendered prompt `text`, a control token of the row's, `control`, one of the template's, and lone
        marks. `contents` is the pattern of all control tokens.

        One mark is enough: a template may have cut the text between a token and its other one.
        """
        opening, closing, edge = map(_written, (self.opening, self.closing, self.edge))
        text, control = f"(?i:{contents})", f"(?P<control>{contents})"
        return f"{opening}(?P<text>{text})(?:{closing})?|(?P<cut>{text}){closing}|{control}|{opening}|{closing}|{edge}"


def choose_marks(texts: Sequence[str]) -> ControlMarks:
    """Three that none of `texts` has, neither as they are nor as they are escaped."""
    used = set[str]().union(*texts)
    unused = (character for character in map(chr, chain(*_CANDIDATES)) if character not in used)
    if any("\\u" in text or "\\U" in text for text in texts):
        joined = "\0".join(texts)
        unused = (each for each in unused if not re.search(_written(each), joined))
    return ControlMarks(*islice(unused, 3))


def _written(character: str) -> str:
    """A pattern of the ways in which a template can write `character`."""
    units = character.encode("utf-16-be")
    escapes = [rf"\\+u{units[each : each + 2].hex()}" for each in range(0, len(units), 2)]
    return rf"(?:{character}|(?i:{''.join(escapes)})|(?i:\\+U{ord(character):08x}))"
