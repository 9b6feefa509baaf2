"""English without meaning, of a given length in tokens: for measuring, where what is said does not matter.

Sentences of a small grammar, drawn from a seed. Lengths are those of the model's own tokenizer, added up word by word:
right where a word with the space before it is always cut alike, off by a few tokens where it is not.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infer.engine.tokenizer import Tokenizer

_PEOPLE = (
    "the baker|a farmer|my neighbour|the old captain|our teacher|a young painter|the night guard|the doctor|"
    "an engineer|the librarian|two sisters|the whole village|a travelling clerk|the gardener|nobody|every student"
)
_VERBS = (
    "carried|counted|repaired|sold|forgot|painted|measured|borrowed|described|hid|lost|found|weighed|returned|"
    "studied|moved|opened|collected|traded|cleaned"
)
_NUMBERS = "one|two|three|five|seven|nine|twelve|14|20|35|48|60|125|300|1,000|a dozen|several|a few|too many|hardly any"
_ADJECTIVES = (
    "small|heavy|blue|broken|wooden|expensive|quiet|yellow|rusty|ancient|bright|narrow|frozen|empty|round|"
    "curious|warm|dusty|silver|hollow"
)
_THINGS = (
    "boxes|lamps|letters|bicycles|apples|maps|clocks|barrels|windows|coins|bridges|stories|engines|baskets|"
    "notebooks|kettles|ropes|ladders|carpets|stones"
)
_PLACES = (
    "near the river|in the market|behind the station|on the third floor|under the bridge|at the harbour|"
    "beside the mill|in an open field|along the northern road|across the valley|in the cellar|by the lighthouse"
)
_TIMES = (
    "before noon|in the evening|last winter|on Monday|after the storm|every spring|for three weeks|without delay|"
    "at dawn|since the fair|twice a day|during the harvest"
)
_JOINTS = "and|but|so|because|although|while|and then|which is why"

_GRAMMAR = (_PEOPLE, _VERBS, _NUMBERS, _ADJECTIVES, _THINGS, _PLACES, _TIMES)
_FILLERS = ("and", "the", "of", "in", "a")


class SyntheticText:
    """Makes texts. `count` tells how many tokens the model's tokenizer makes of a piece of text."""

    def __init__(self, count: Callable[[str], int], seed: int) -> None:
        self._count = count
        self._random = random.Random(seed)
        self._lengths: dict[str, int] = {}

    def make(self, num_tokens: int) -> str:
        """A text of about `num_tokens` tokens, at least one; a different one each time."""
        words: list[str] = []
        left = num_tokens
        for word in self._words():
            length = self._length(word)
            if length > left:
                break
            words.append(word)
            left -= length
        while left > 0 or not words:
            filler = self._random.choice(_FILLERS)
            words.append(filler)
            left -= self._length(filler)
        return " ".join(words)

    def _words(self) -> Iterator[str]:
        while True:
            sentence = [self._random.choice(choices.split("|")) for choices in _GRAMMAR]
            if self._random.random() < 0.3:
                sentence.append(self._random.choice(_JOINTS.split("|")))
                sentence += [self._random.choice(choices.split("|")) for choices in _GRAMMAR[:5]]
            first, *others = " ".join(sentence).split(" ")
            yield first.capitalize()
            yield from others[:-1]
            yield f"{others[-1]}."

    def _length(self, word: str) -> int:
        length = self._lengths.get(word)
        if length is None:
            # A tokenizer may make nothing of it; a text has an end all the same.
            length = self._lengths[word] = max(1, self._count(f" {word}"))
        return length


def token_counter(tokenizer: Tokenizer) -> Callable[[str], int]:
    """How many tokens it makes of a piece of text, without those that it puts around a prompt."""
    return lambda text: len(tokenizer.backend.encode(text, add_special_tokens=False).ids)
