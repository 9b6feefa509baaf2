"""From a row to the prompt that the engine is asked: a column, a template or chat messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from pyarrow import types

from infer.cli.errors import UsageError
from infer.cli.prompt_template import parse_template
from infer.engine.errors import PromptError
from infer.io.schema import check_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from infer.engine.control_tokens import PromptText, SpecialTokens
    from infer.engine.tokenizer import Tokenizer
    from infer.io.row import Row

_USUAL_COLUMNS = ("prompt", "messages", "text")
# Tokenising takes up to 300 bytes of memory for a byte of text. Within the first limit are a million tokens and more.
_MAX_PROMPT_BYTES = 4 << 20
_CHARACTERS_AT_ONCE = 1 << 20
_BINARY_HINT = "cast it to string where the input is written, if it holds text"
_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """Where a row's prompt comes from, under the names of the flags: one of the first three, once it is resolved."""

    prompt_column: str | None = None
    prompt: str | None = None
    """A template."""
    messages_column: str | None = None
    system: str | None = None
    raw: bool = False
    special_tokens: SpecialTokens = "sanitize"
    """What the model's control tokens are in the text of a row."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the prompt is made from.

        Raises:
            UsageError: a template that cannot be read.
        """
        if self.prompt is not None:
            return tuple(dict.fromkeys(field.column for field in parse_template(self.prompt).fields))
        return tuple(name for name in (self.prompt_column, self.messages_column) if name is not None)

    def resolve(self, schema: pa.Schema) -> PromptSpec:
        """The same, checked against the columns of the input; where no source was named, the usual column is it.

        Raises:
            UsageError: a template that cannot be read, a column whose type is no prompt, or no source at all.
            InputError: a column that the input does not have.
        """
        spec = self if self.columns else self._with_usual_column(schema.names)
        check_columns(spec.columns, schema)
        if spec.prompt is not None:
            _check_is_writable(spec.columns, schema)
        if (name := spec.prompt_column) is not None and not _is_text(schema.field(name).type):
            is_binary = _is_binary(schema.field(name).type)
            raise UsageError(
                f"--prompt-column must be text, {name} is {schema.field(name).type}",
                _BINARY_HINT if is_binary else f"a template writes other values as text: --prompt '{{{name}}}'",
            )
        if (name := spec.messages_column) is not None and not _is_list_or_text(schema.field(name).type):
            raise UsageError(
                f"--messages-column must be a list of messages, {name} is {schema.field(name).type}",
                "a message is an object with role and content; a conversation is a list of them",
            )
        return spec

    def _with_usual_column(self, names: Sequence[str]) -> PromptSpec:
        for name in _USUAL_COLUMNS:
            # Messages need the chat template.
            if name in names and not (self.raw and name == "messages"):
                return replace(self, messages_column=name) if name == "messages" else replace(self, prompt_column=name)
        raise UsageError(
            f"no prompt was asked for, and no column is named {' or '.join(_USUAL_COLUMNS)}: {', '.join(names)}",
            "say what to ask: --prompt-column NAME, or --prompt 'Summarise: {NAME}'",
        )


class PromptBuilder:
    """Makes the prompt token ids of rows. `spec` is a resolved one.

    Raises:
        UsageError: `spec` needs a chat template and the model has none, or none that takes a system message.
        ModelError: the model's chat template cannot be rendered.
    """

    def __init__(self, spec: PromptSpec, tokenizer: Tokenizer) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._template = None if spec.prompt is None else parse_template(spec.prompt)
        self._chat_template = None if spec.raw else tokenizer.chat_template
        self._system = [] if spec.system is None else [{"role": "system", "content": spec.system}]
        self._check_chat_template()

    def build(self, row: Row) -> list[int]:
        """The prompt token ids of `row`.

        Raises:
            PromptError: the row has no prompt, or none that can be rendered.
        """
        result = self.build_many([row])[0]
        if isinstance(result, PromptError):
            raise result
        return result

    def build_many(self, rows: Iterable[Row]) -> list[list[int] | PromptError]:
        """As `build` for each of `rows`, on all cores; an error stands in its row's place."""
        prompts = [self._render_or_error(row) for row in rows]
        token_ids = self._encode([each for each in prompts if not isinstance(each, PromptError)])
        return [each if isinstance(each, PromptError) else next(token_ids) for each in prompts]

    def _encode(self, prompts: Sequence[PromptText]) -> Iterator[list[int] | PromptError]:
        begin = 0
        while begin < len(prompts):
            end, num_characters = begin + 1, len(prompts[begin].text)
            while end < len(prompts) and num_characters + len(prompts[end].text) <= _CHARACTERS_AT_ONCE:
                num_characters += len(prompts[end].text)
                end += 1
            # A chat template writes BOS itself.
            yield from self._tokenizer.encode_each(prompts[begin:end], add_special_tokens=self._chat_template is None)
            begin = end

    def _render_or_error(self, row: Row) -> PromptText | PromptError:
        try:
            prompt = self._render(row)
        except PromptError as error:
            return error
        num_bytes = len(prompt.text.encode(errors="surrogatepass"))
        if num_bytes > _MAX_PROMPT_BYTES:
            message = f"the prompt has {num_bytes} bytes, more than {_MAX_PROMPT_BYTES:,}"
            return PromptError("prompt_too_long", message)
        return prompt

    def _render(self, row: Row) -> PromptText:
        if self._spec.messages_column is not None:
            return self._render_chat(_messages(self._spec.messages_column, row))
        values, fill = self._content(row)
        content = fill(values)
        if not content:
            raise PromptError("empty_prompt", "the prompt is empty")
        if self._chat_template is not None:
            return self._render_chat([{"role": "user", "content": content}])
        # The template is the user's own, who may write control tokens; the row's values may not.
        return self._tokenizer.render(values, fill, joins=True, special_tokens=self._spec.special_tokens)

    def _content(self, row: Row) -> tuple[list[str], Callable[[Sequence[str]], str]]:
        if self._template is not None:
            return self._template.values(row), self._template.fill
        assert self._spec.prompt_column is not None, self._spec
        return [_text(self._spec.prompt_column, row)], "".join

    def _render_chat(self, messages: Any) -> PromptText:
        assert self._chat_template is not None, self._spec
        if self._system and isinstance(messages, list) and not _has_system_message(messages):
            messages = [*self._system, *messages]
        return self._chat_template.render_text(messages, special_tokens=self._spec.special_tokens)

    def _check_chat_template(self) -> None:
        if self._chat_template is None:
            for name in ("system", "messages_column"):
                if getattr(self._spec, name) is not None:
                    flag = f"--{name.replace('_', '-')}"
                    raise UsageError(
                        f"{flag} needs a chat template: {'--raw' if self._spec.raw else 'the model has none'}"
                    )
        elif self._system:
            try:
                self._render_chat([{"role": "user", "content": "Hello"}])
            except PromptError as error:
                raise UsageError(f"--system does not work with this model: {error}", "put it into --prompt") from error


def _text(name: str, row: Row) -> str:
    value = row.get(name)
    if value is None:
        raise PromptError("invalid_input", f"column {name} is null")
    if not isinstance(value, str):
        found = f"column {name} must be text"
        raise PromptError("invalid_input", f"{found}: {value!r:.80}", public=found)
    return value


def _messages(name: str, row: Row) -> Any:
    value = row.get(name)
    if value is None:
        raise PromptError("invalid_input", f"column {name} is null")
    if isinstance(value, list):
        return [_as_object(message) for message in value]
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except ValueError as error:
        found = f"column {name} is neither a list of messages nor JSON"
        raise PromptError("invalid_input", f"{found}: {value!r:.80}", public=found) from error


def _as_object(message: Any) -> Any:
    # A map column gives pairs; JSON has no tuples.
    is_map = isinstance(message, list) and all(isinstance(pair, tuple) for pair in message)
    return dict(message) if is_map else message


def _has_system_message(messages: list[Any]) -> bool:
    return bool(messages) and isinstance(messages[0], dict) and messages[0].get("role") in _SYSTEM_ROLES


def _is_text(type_: pa.DataType) -> bool:
    if types.is_dictionary(type_):
        return _is_text(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _is_text(type_.storage_type)
    # A column of nulls only is an error of its rows, each for itself.
    is_text: bool = types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    return is_text or types.is_null(type_)


def _check_is_writable(names: Iterable[str], schema: pa.Schema) -> None:
    for name in names:
        if _is_binary(schema.field(name).type):
            raise UsageError(f"a template takes columns that can be written as text, {name} is binary", _BINARY_HINT)


def _is_binary(type_: pa.DataType) -> bool:
    if types.is_dictionary(type_):
        return _is_binary(type_.value_type)
    is_binary: bool = types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_)
    return is_binary or types.is_binary_view(type_)


def _is_list_or_text(type_: pa.DataType) -> bool:
    is_list: bool = types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    return is_list or types.is_list_view(type_) or types.is_large_list_view(type_) or _is_text(type_)
