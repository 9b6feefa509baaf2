"""--prompt: a text with columns in braces, filled in from a row in one pass, so that a row's own braces mean nothing.

Summarise in {language}: {text}        a column
{price:.2f} {text:.500}                with a format of Python's: two decimals, the first 500 characters
Answer like this: {{"label": ...}}     a brace
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING

from infer.cli.errors import UsageError
from infer.engine.errors import PromptError
from infer.io.json_value import dump

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.io.row import Row

_MAX_WIDTH = 10_000
_BRACES_HINT = "a column stands in braces, {text}; a brace itself is written twice, {{ or }}"


@dataclass(frozen=True, slots=True)
class Field:
    """A column in braces, and the format after its colon."""

    column: str
    format_spec: str


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The text between the fields, and the fields: one literal more than there are fields."""

    literals: tuple[str, ...]
    fields: tuple[Field, ...]

    def values(self, row: Row) -> list[str]:
        """The text of each field.

        Raises:
            PromptError: `invalid_input`, a column is null or has no such text.
        """
        return [_field_text(field, row.get(field.column)) for field in self.fields]

    def fill(self, values: Sequence[str]) -> str:
        """The prompt, given the text of each field."""
        filled = [literal + value for literal, value in zip(self.literals, values, strict=False)]
        return "".join([*filled, self.literals[-1]])


def parse_template(text: str) -> PromptTemplate:
    """The template that `text` describes.

    Raises:
        UsageError: braces that do not match or name no column.
    """
    literals, fields = [""], []
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        raise UsageError(f"the prompt has a brace without its other half: {text!r:.200}", _BRACES_HINT) from error
    for literal, column, format_spec, conversion in parsed:
        literals[-1] += literal
        if column is None:
            continue
        if any(int(number) > _MAX_WIDTH for number in re.findall(r"\d+", format_spec or "")):
            raise UsageError(f"a format of the prompt is wider than {_MAX_WIDTH:,} characters: {column}:{format_spec}")
        if not column or conversion or set(column) & set("\"'\n{") or "{" in (format_spec or ""):
            raise UsageError(f"the prompt has braces around what is no column: {column!r}", _BRACES_HINT)
        fields.append(Field(column, format_spec or ""))
        literals.append("")
    if not fields:
        raise UsageError(
            f"the prompt names no column, so it would be the same in every row: {text!r:.200}", _BRACES_HINT
        )
    return PromptTemplate(tuple(literals), tuple(fields))


def _field_text(field: Field, value: object) -> str:
    if value is None:
        raise PromptError("invalid_input", f"column {field.column} is null")
    if isinstance(value, bytes):
        raise PromptError("invalid_input", f"column {field.column} is binary")
    try:
        return format(value, field.format_spec) if field.format_spec else _plain_text(value)
    except UnicodeEncodeError as error:
        raise PromptError("invalid_unicode", f"column {field.column} has a lone surrogate") from error
    except (TypeError, ValueError, OverflowError) as error:
        found = f"column {field.column} cannot be written as text"
        raise PromptError("invalid_input", f"{found}: {error}", public=found) from error


def _plain_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | list | dict):
        return dump(value).decode()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
