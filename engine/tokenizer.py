"""Text to token ids and back."""

from __future__ import annotations

from functools import cached_property
from textwrap import shorten
from typing import TYPE_CHECKING

from infer.engine.chat_template import ChatTemplate
from infer.engine.control_tokens import ControlTokens, PromptText
from infer.engine.errors import ModelError, PromptError
from infer.engine.panics import is_panic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    import tokenizers
    from transformers import PreTrainedTokenizerBase

    from infer.engine.control_tokens import SpecialTokens


class Tokenizer:
    """A fast tokenizer of `transformers`, in which control tokens are what the model's own template writes.

    `eos_token_id` is what `generation_config.json` says, one id or several; the tokenizer's own is added to it.

    Raises:
        ModelError: a tokenizer without a `tokenizers` backend.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_id: int | Iterable[int] | None = None) -> None:
        if not tokenizer.is_fast:
            raise ModelError(
                f"the tokenizer has no tokenizer.json: {type(tokenizer).__name__}",
                hint="convert it to a fast tokenizer, AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            )
        self.wrapped = tokenizer
        self.backend: tokenizers.Tokenizer = tokenizer.backend_tokenizer
        self.backend.no_truncation()
        self.backend.no_padding()
        self.vocab_size: int = len(tokenizer)
        self.bos_token_id: int | None = tokenizer.bos_token_id
        self.eos_token_ids = frozenset([*_as_ids(eos_token_id), *_as_ids(tokenizer.eos_token_id)])
        try:
            self._control_tokens = ControlTokens(self.backend, _control_token_ids(tokenizer), tokenizer.unk_token_id)
            self._prefix_ids, self._suffix_ids = _special_ids_around(self.backend)
            self.decode(self.encode_prompt(PromptText("a\n"), add_special_tokens=True))
        except BaseException as error:
            # A foreign tokenizer fails in any way it likes, a panic of its library among them.
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise ModelError(
                f"the tokenizer does not work: {shorten(f'{type(error).__name__}: {error}', 300)}"
            ) from error

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """None where the model has none.

        Raises:
            ModelError: the model has one that cannot be rendered.
        """
        return ChatTemplate(self) if self.wrapped.chat_template else None

    def render(
        self,
        data: Any,
        template: Callable[[Any], str],
        *,
        joins: bool = False,
        special_tokens: SpecialTokens = "sanitize",
    ) -> PromptText:
        """`template(data)`, a prompt whose control tokens are those that the template wrote.

        `data` is a string, or lists and dicts of strings. `joins`: the template only puts them together.

        Raises:
            PromptError: `invalid_unicode`, for a lone surrogate; `invalid_input`, for a control token where
                `special_tokens` is "error".
        """
        return self._control_tokens.render(data, template, joins=joins, special_tokens=special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of `text`, a row's own: a control token in it is text. `add_special_tokens` adds BOS.

        Raises:
            PromptError: `invalid_unicode`, for a lone surrogate.
        """
        return self.encode_prompt(PromptText(text, is_sealed=True), add_special_tokens=add_special_tokens)

    def encode_prompt(self, prompt: PromptText, *, add_special_tokens: bool) -> list[int]:
        """The ids of a rendered prompt; `add_special_tokens` adds BOS where the prompt does not begin with it."""
        return self.encode_batch([prompt], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, prompts: Sequence[PromptText], *, add_special_tokens: bool) -> list[list[int]]:
        """The ids of each prompt; many at once take all cores."""
        sealed = iter(self._control_tokens.encode_sealed([each.text for each in prompts if each.is_sealed]))
        plain = [each.text for each in prompts if not each.is_sealed]
        encoded = iter(self.backend.encode_batch_fast(plain, add_special_tokens=False))
        token_ids = [next(sealed) if each.is_sealed else next(encoded).ids for each in prompts]
        return [self._with_special_ids(ids) for ids in token_ids] if add_special_tokens else token_ids

    def encode_each(self, prompts: Sequence[PromptText], *, add_special_tokens: bool) -> list[list[int] | PromptError]:
        """As `encode_batch`; an error, `internal`, stands in the place of a prompt at which the tokenizer fails."""
        try:
            return [*self.encode_batch(prompts, add_special_tokens=add_special_tokens)]
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            if len(prompts) == 1:
                found = f"the model's tokenizer fails at the text: {type(error).__name__}"
                return [PromptError("internal", f"{found}: {error!s:.200}", public=found)]
        # Whose fault it is only trying shows.
        each = [self.encode_each([prompt], add_special_tokens=add_special_tokens) for prompt in prompts]
        return [result for [result] in each]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`, every space where the model put it."""
        try:
            # The backend's own: `transformers` may clean up spaces before punctuation afterwards.
            text: str = self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            if not is_panic(error):
                raise
            if len(token_ids) < 2:
                return "\ufffd"
            # Some tokens are better than none, and than a job that stops.
            return "".join(self.decode([each], skip_special_tokens=skip_special_tokens) for each in token_ids)
        return text

    def _with_special_ids(self, ids: list[int]) -> list[int]:
        prefix = [] if ids[: len(self._prefix_ids)] == self._prefix_ids else self._prefix_ids
        return [*prefix, *ids, *self._suffix_ids]


def _as_ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _control_token_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The special tokens, and of the other added tokens those that the chat template writes.

    The rest are words to the model: runs of spaces, HTML tags, names that a fine-tune has added.
    """
    templates = tokenizer.chat_template or ""
    source = templates if isinstance(templates, str) else "\0".join(templates.values())
    return {
        token.content: token_id
        for token_id, token in tokenizer.backend_tokenizer.get_added_tokens_decoder().items()
        if token.special or (token.content.strip() and token.content in source)
    }


def _special_ids_around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text, BOS as a rule."""
    encoding = backend.encode("a", add_special_tokens=True)
    inside = [index for index, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    if not inside:
        raise ValueError("it makes no token of a letter")
    return encoding.ids[: inside[0]], encoding.ids[inside[-1] + 1 :]
