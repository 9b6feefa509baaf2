"""Chat messages to the prompt that the model was trained on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import jinja2

from infer.engine.control_tokens import strings_in
from infer.engine.errors import ModelError, PromptError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infer.engine.control_tokens import PromptText
    from infer.engine.tokenizer import Tokenizer

PROBE_SECONDS = 20.0
"""A template that has not rendered one short message by then has a loop without an end."""

_MAX_ADDED_CHARACTERS = 1 << 20
_MAX_EXPANSION = 16

# What a template can raise besides Jinja's own errors: it calls methods and operators of plain Python values.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
)


class ChatTemplate:
    """The template of `tokenizer`, run in the sandbox of `transformers`.

    A control token in a message is text. A template that cannot render a user message is found at once.

    Raises:
        ModelError: the template cannot be rendered, or not in time.
    """

    def __init__(self, tokenizer: Tokenizer, *, probe_seconds: float = PROBE_SECONDS) -> None:
        self._tokenizer = tokenizer
        self._probe(probe_seconds)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt token ids of a conversation, up to where the assistant's answer begins.

        Raises:
            PromptError: `template_error` with the template's own message; `invalid_input` for what are no chat
                messages; `empty_prompt` for none at all; `invalid_unicode`.
        """
        return self._tokenizer.encode_prompt(self.render_text(messages), add_special_tokens=False)

    def render_text(self, messages: Sequence[Mapping[str, Any]]) -> PromptText:
        """As `render`, before it is tokenised. The template itself writes BOS: nothing is to be added."""
        try:
            return self._tokenizer.render(_plain_messages(messages), self._apply)
        except RecursionError as error:
            raise PromptError("invalid_input", "messages are nested too deeply") from error

    def _apply(self, messages: list[dict[str, Any]]) -> str:
        try:
            rendered: str = self._tokenizer.wrapped.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except _TEMPLATE_ERRORS as error:
            raise PromptError("template_error", f"chat template: {error}") from error
        max_characters = _MAX_ADDED_CHARACTERS + _MAX_EXPANSION * sum(map(len, strings_in(messages)))
        if len(rendered) > max_characters:
            raise PromptError(
                "template_error",
                f"chat template: wrote {len(rendered)} characters where {max_characters} are allowed",
            )
        return rendered

    def _probe(self, seconds: float) -> None:
        failures: list[PromptError] = []

        def render() -> None:
            try:
                self.render_text([{"role": "user", "content": "Hello"}])
            except PromptError as error:
                failures.append(error)

        # The sandbox stops neither loops nor memory. A daemon, so that a template without an end does not keep us.
        thread = threading.Thread(target=render, name="chat-template-probe", daemon=True)
        thread.start()
        thread.join(seconds)
        hint = "run without it: --raw"
        if thread.is_alive():
            raise ModelError(f"the model's chat template takes more than {seconds:g} s for one short message", hint)
        if failures:
            raise ModelError(f"the model's chat template fails on a plain user message: {failures[0]}", hint)


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
            raise PromptError("invalid_input", f"messages[{number}].content has a part that is not text: {kind}")
        texts.append(part["text"])
    return "\n".join(texts)
