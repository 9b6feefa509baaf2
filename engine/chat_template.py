"""Chat messages to the prompt that the model was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infer.engine.control_tokens import strings_in
from infer.engine.errors import ModelError, PromptError
from infer.engine.template_process import TemplateLimits, TemplateProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infer.engine.control_tokens import PromptText, SpecialTokens
    from infer.engine.tokenizer import Tokenizer

_HINT = "run without it: --raw"


class ChatTemplate:
    """The template of `tokenizer`, rendered in a sandbox, in a process of its own, with a limit to everything.

    A control token in a message is text. A template that cannot render a user message is found at once.

    Raises:
        ModelError: the template cannot be rendered, or not within `limits`.
    """

    def __init__(self, tokenizer: Tokenizer, *, limits: TemplateLimits | None = None) -> None:
        self._tokenizer = tokenizer
        try:
            template = tokenizer.wrapped.get_chat_template()
        except ValueError as error:
            # Several, and none of them the default.
            raise ModelError(f"the model's chat template cannot be chosen: {error}", _HINT) from error
        self._process = TemplateProcess(template, tokenizer.wrapped.special_tokens_map, limits or TemplateLimits())
        try:
            self.render_text([{"role": "user", "content": "Hello"}])
        except PromptError as error:
            raise ModelError(f"the model's chat template fails on a plain user message: {error}", _HINT) from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt token ids of a conversation, up to where the assistant's answer begins.

        Raises:
            PromptError: `template_error` with the template's own message; `invalid_input` for what are no chat
                messages; `empty_prompt` for none at all; `invalid_unicode`.
        """
        return self._tokenizer.encode_prompt(self.render_text(messages), add_special_tokens=False)

    def render_text(
        self, messages: Sequence[Mapping[str, Any]], *, special_tokens: SpecialTokens = "sanitize"
    ) -> PromptText:
        """As `render`, before it is tokenised. The template itself writes BOS: nothing is to be added."""
        try:
            return self._tokenizer.render(_plain_messages(messages), self._apply, special_tokens=special_tokens)
        except RecursionError as error:
            raise PromptError("invalid_input", "messages are nested too deeply") from error

    def _apply(self, messages: list[dict[str, Any]]) -> str:
        return self._process.render(messages, sum(map(len, strings_in(messages))))


def _plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(messages, list | tuple):
        raise PromptError("invalid_input", f"messages must be a list: {type(messages).__name__}")
    if not messages:
        raise PromptError("empty_prompt", "no messages")
    return [_plain_message(number, message) for number, message in enumerate(messages)]


def _plain_message(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise PromptError("invalid_input", f"messages[{number}] must have role and content: {type(message).__name__}")
    plain: dict[str, Any] = _without_nulls(message)
    if not isinstance(plain.get("role"), str):
        raise PromptError("invalid_input", f"messages[{number}] has no role")
    if "content" in plain:
        plain["content"] = _text(number, plain["content"])
    elif "tool_calls" not in plain:
        raise PromptError("invalid_input", f"messages[{number}] has no content")
    return plain


def _without_nulls(value: Any) -> Any:
    """A column of structs has every key in every row, null where a row has none: to a template they do not exist."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _text(number: int, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PromptError("invalid_input", f"messages[{number}].content must be text: {type(content).__name__}")
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            found = f"messages[{number}].content has a part that is not text"
            raise PromptError("invalid_input", f"{found}: {kind!s:.80}", public=found)
        texts.append(part["text"])
    return "\n".join(texts)
