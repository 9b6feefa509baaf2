"""Control tokens in data are text; control tokens that a template writes are control tokens.

    row text    Obey <|im_end|>
    quoted      Obey ‹<|im_end|>›                               ‹ and › occur nowhere in the row
    rendered    <|im_start|>user\\nObey ‹<|im_end|>›<|im_end|>
    sealed      ALIAS1 user\\nObey <|im_end|> ALIAS2             the aliases are names that no row can guess

A value that ends as a control token begins has a third mark behind it, so that what follows does not complete it; one
that begins as a token ends, or could stand inside one, likewise. What is one but for upper case is quoted too, since a
template may change that.

A second backend knows the aliases and not the control tokens, so a sealed prompt is tokenised in one piece: between two
control tokens the ids are those that the text has by itself. A row without control tokens takes none of these steps.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import AddedToken, Tokenizer

from infer.engine.control_marks import choose_marks
from infer.engine.errors import PromptError
from infer.engine.panics import is_panic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from infer.engine.control_marks import ControlMarks

SpecialTokens = Literal["sanitize", "allow", "error"]
"""What a control token in a row's text is: text, a control token, or a reason to refuse the row."""

_NEVER = "(?!)"
_NAME = re.compile(r"\w*", re.ASCII)


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
        self._exact = re.compile(self._contents)
        self._pattern = re.compile(self._contents, re.IGNORECASE)
        decoder = backend.get_added_tokens_decoder()
        of_normalized = [each.content for each in decoder.values() if each.normalized and each.content in token_ids]
        self._normalizer = backend.normalizer if of_normalized else None
        if self._normalizer is not None:
            of_normalized = [self._normalizer.normalize_str(content) for content in of_normalized]
        self._normalized = re.compile("|".join(map(re.escape, filter(None, of_normalized))) or _NEVER)
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
        known = [_renamed(token, self._aliases.get(token.content, token.content)) for token in decoder.values()]
        self._backend = _without_added_tokens(backend)
        self._backend.add_tokens(known)
        self._added_ids = {
            self._backend.token_to_id(token.content): id_ for id_, token in zip(decoder, known, strict=True)
        }
        # `</s>` can also be a piece of the vocabulary, which the model may find in text. Unknown text stays unknown.
        in_vocabulary = {content for content in token_ids if backend.model.token_to_id(content) is not None}
        self._pieces = {token_ids[content]: content for content in in_vocabulary if token_ids[content] != unknown_id}

    def render(
        self,
        data: Any,
        template: Callable[[Any], str],
        *,
        joins: bool = False,
        special_tokens: SpecialTokens = "sanitize",
    ) -> PromptText:
        """`template(data)`. `data` is a string, or lists and dicts of strings; control tokens in it remain text.

        joins: the template puts the strings together and looks at none of them, so any of them may be marked

        Raises:
            PromptError: `invalid_input`, there is a control token in `data` and `special_tokens` is "error".
        """
        if special_tokens == "allow":
            return PromptText(template(data))
        texts = list(strings_in(data))
        if not any(self._is_suspect(text) or any(self._edges(text, joins)) for text in texts):
            return PromptText(template(data))
        if special_tokens == "error" and (found := next(filter(None, map(self._find, texts)), None)):
            raise PromptError(
                "invalid_input",
                f"the text has a control token of the model: {found}",
                hint="--special-tokens sanitize",
            )
        marks = choose_marks(texts)

        def quote(text: str) -> str:
            # One character on each side, so that a template can still trim the text, split it and search it.
            quoted = self._pattern.sub(rf"{marks.opening}\g<0>{marks.closing}", text)
            before, after = self._edges(text, joins)
            return f"{marks.edge if before else ''}{quoted}{marks.edge if after else ''}"

        return PromptText(self._seal(template(_map_strings(data, quote)), marks), is_sealed=True)

    def _is_suspect(self, text: str) -> bool:
        """Whether the model's own backend could find a control token in `text`, or in what is made of it.

        `＜|im_end|＞` becomes one by NFKC, where the token is looked for in what the normalizer has made of the text.
        The second backend knows no such token: it is enough that the prompt is sealed.
        """
        return self._pattern.search(text) is not None or self._normalize(text) != text

    def _find(self, text: str) -> str | None:
        found = self._exact.search(text) or self._normalized.search(self._normalize(text))
        return found and found[0]

    def _normalize(self, text: str) -> str:
        if self._normalizer is None:
            return text
        try:
            normalized: str = self._normalizer.normalize_str(text)
        except BaseException as error:
            # A lone surrogate, which is refused when the prompt is made; or a panic, which encoding will meet again.
            if not isinstance(error, UnicodeEncodeError) and not is_panic(error):
                raise
            return text
        return normalized

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

    def _seal(self, rendered: str, marks: ControlMarks) -> str:
        def seal(match: re.Match[str]) -> str:
            return match["text"] or match["cut"] or self._aliases.get(match["control"], "")

        return re.sub(marks.pattern(self._contents), seal, rendered)

    def _real_ids(self, ids: list[int]) -> list[int]:
        if not self._pieces.keys().isdisjoint(ids):
            ids = [token_id for found in ids for token_id in self._spelled(found)]
        return [self._added_ids.get(token_id, token_id) for token_id in ids]

    def _spelled(self, token_id: int) -> list[int]:
        if token_id not in self._pieces:
            return [token_id]
        return [piece.id for letter in self._pieces[token_id] for piece in self._backend.model.tokenize(letter)]


def strings_in(data: Any) -> Iterator[str]:
    """Every string among lists and dicts, and every key that is more than a name: a template may write them all."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            if not _is_name(key):
                yield key
            yield from strings_in(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from strings_in(value)


def _is_name(key: Any) -> bool:
    """Whether a template may look for a key: `role`, `content`. No mark is put on these."""
    return not isinstance(key, str) or _NAME.fullmatch(key) is not None


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
        return {key if _is_name(key) else change(key): _map_strings(value, change) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_map_strings(value, change) for value in data]
    return data
