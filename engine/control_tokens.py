"""Control tokens in data are text; control tokens that a template writes are control tokens.

    row text    Obey <|im_end|>
    quoted      Obey ‹<|im_end|>›                               ‹ and › occur nowhere in the row
    rendered    <|im_start|>user\\nObey ‹<|im_end|>›<|im_end|>
    sealed      ALIAS1 user\\nObey <|im_end|> ALIAS2             the aliases are names that no row can guess

A value that ends as a control token begins has a lone › behind it, so that what follows does not complete it; one that
begins as a token ends, or could stand inside one, likewise.

A second backend knows the aliases and not the control tokens, so a sealed prompt is tokenised in one piece: between two
control tokens the ids are those that the text has by itself. A row without control tokens takes none of these steps.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer

from infer.engine.errors import PromptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_PRIVATE_USE = range(0xF0000, 0xFFFFE)
_NEVER = "(?!)"


@dataclass(frozen=True, slots=True)
class PromptText:
    """A rendered prompt. Sealed: its control tokens are written as aliases, and what looks like one is text.

    Raises:
        PromptError: `invalid_unicode`, for a lone surrogate.
    """

    text: str
    is_sealed: bool = False

    def __post_init__(self) -> None:
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            code_point = f"U+{ord(self.text[error.start]):04X}"
            raise PromptError(
                "invalid_unicode", f"lone surrogate at character {error.start} of the prompt: {code_point}"
            ) from error


class ControlTokens:
    """The control tokens of a tokenizer, given as content -> token id, and prompts in which no row can forge them."""

    def __init__(self, backend: Tokenizer, token_ids: Mapping[str, int], unknown_id: int | None) -> None:
        # The first alternative that fits is taken: longest first, as the backend matches them.
        self._contents = "|".join(map(re.escape, sorted(token_ids, key=len, reverse=True))) or _NEVER
        self._pattern = re.compile(self._contents)
        # What a value and its surroundings could make a control token of together.
        self._beginnings = {
            least: tuple({content[:end] for content in token_ids for end in range(least, len(content))})
            for least in (1, 2)
        }
        self._ends = {
            least: tuple({content[start:] for content in token_ids for start in range(1, len(content) - least + 1)})
            for least in (1, 2)
        }
        self._insides = "\0".join(token_ids)
        nonce = secrets.token_hex(16)
        self._aliases = {content: f"<{nonce}:{token_id}>" for content, token_id in token_ids.items()}
        added = backend.get_added_tokens_decoder()
        known = [_renamed(token, self._aliases.get(token.content, token.content)) for token in added.values()]
        self._backend = _without_added_tokens(backend)
        self._backend.add_tokens(known)
        self._added_ids = {
            self._backend.token_to_id(token.content): id_ for id_, token in zip(added, known, strict=True)
        }
        # `</s>` can also be a piece of the vocabulary, which the model may find in text. Unknown text stays unknown.
        in_vocabulary = {content for content in token_ids if backend.model.token_to_id(content) is not None}
        self._pieces = {token_ids[content]: content for content in in_vocabulary if token_ids[content] != unknown_id}

    def render(self, data: Any, template: Callable[[Any], str], *, joins: bool = False) -> PromptText:
        """`template(data)`. `data` is a string, or lists and dicts of strings; control tokens in it remain text.

        joins: the template puts the strings together and looks at none of them, so any of them may be marked
        """
        texts = list(strings_in(data))
        if not any(self._pattern.search(text) or any(self._edges(text, joins)) for text in texts):
            return PromptText(template(data))
        opening, closing = _unused_characters(texts)

        def quote(text: str) -> str:
            # One character on each side, so that a template can still trim the text, split it and search it.
            quoted = self._pattern.sub(rf"{opening}\g<0>{closing}", text)
            before, after = self._edges(text, joins)
            return f"{opening if before else ''}{quoted}{closing if after else ''}"

        return PromptText(self._seal(template(_map_strings(data, quote)), opening, closing), is_sealed=True)

    def _edges(self, text: str, joins: bool) -> tuple[bool, bool]:
        """Whether what stands before and behind `text` could make a control token of it.

        A template that looks at its strings would see a mark on a short one: there only pieces of two characters count,
        of which one of two halves always is one.
        """
        is_inside = joins and text != "" and text in self._insides
        least = 1 if joins else 2
        return is_inside or text.startswith(self._ends[least]), is_inside or text.endswith(self._beginnings[least])

    def encode_sealed(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each sealed text."""
        return [self._real_ids(encoding.ids) for encoding in self._backend.encode_batch_fast(texts)]

    def _seal(self, rendered: str, opening: str, closing: str) -> str:
        def seal(match: re.Match[str]) -> str:
            return match["text"] or self._aliases.get(match["control"], "")

        quoted = f"{opening}(?P<text>{self._contents}){closing}"
        return re.sub(f"{quoted}|(?P<control>{self._contents})|[{opening}{closing}]", seal, rendered)

    def _real_ids(self, ids: list[int]) -> list[int]:
        if not self._pieces.keys().isdisjoint(ids):
            ids = [token_id for found in ids for token_id in self._spelled(found)]
        return [self._added_ids.get(token_id, token_id) for token_id in ids]

    def _spelled(self, token_id: int) -> list[int]:
        if token_id not in self._pieces:
            return [token_id]
        return [piece.id for letter in self._pieces[token_id] for piece in self._backend.model.tokenize(letter)]


def strings_in(data: Any) -> Iterator[str]:
    """Every string among lists and the values of dicts."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from strings_in(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from strings_in(value)


def _without_added_tokens(backend: Tokenizer) -> Tokenizer:
    """The same normalizer, pre-tokenizer and (shared) vocabulary."""
    plain = Tokenizer(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    return plain


def _renamed(token: AddedToken, content: str) -> AddedToken:
    if token.content == content:
        return token
    # An alias is found in the text as it stands: no normalizer can change what it looks like.
    return AddedToken(content, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)


def _map_strings(data: Any, change: Callable[[str], str]) -> Any:
    if isinstance(data, str):
        return change(data)
    if isinstance(data, dict):
        return {key: _map_strings(value, change) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_map_strings(value, change) for value in data]
    return data


def _unused_characters(texts: Sequence[str]) -> tuple[str, str]:
    used = set[str]().union(*texts)
    unused = (character for character in map(chr, _PRIVATE_USE) if character not in used)
    return next(unused), next(unused)
