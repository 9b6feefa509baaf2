"""JSON text to Python values and back, exactly, and without a way to exhaust the machine."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from typing import TYPE_CHECKING, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_NESTING = 128
"""Levels of lists and objects in one row. Writers and other readers give up at a few hundred."""
_MAX_EXACT = 2.0**63


class InvalidLineError(ValueError):
    """A line that is not one JSON object; the message says what it is instead. `code` is its row's `error_code`."""

    def __init__(self, message: str, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.code = code


def parse_object(line: bytes) -> dict[str, object]:
    """The object on one line of a JSONL file.

    Raises:
        InvalidLineError: the line is something else.
    """
    try:
        value: object = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _invalid(line, error) from error
    if not isinstance(value, dict):
        raise InvalidLineError(f"expected an object, found {_name(value)}")
    if _may_have_lost_digits(value.values(), MAX_NESTING):
        # orjson reads integers beyond 64 bits as floats; the standard library keeps them.
        return cast("dict[str, object]", json.loads(line))
    return value


def dump(value: object) -> bytes:
    """`value` as one line of JSON, without the line end. Where JSON has no such value, its usual text stands for it."""
    try:
        return orjson.dumps(value, default=_to_json)
    except TypeError:
        return orjson.dumps(_with_long_integers(value), default=_to_json)


def _invalid(line: bytes, error: orjson.JSONDecodeError) -> InvalidLineError:
    try:
        line.decode()
    except UnicodeDecodeError as broken:
        return InvalidLineError(f"not valid UTF-8 at byte {broken.start + 1}", "invalid_unicode")
    is_lone_surrogate = "surrogate" in error.msg
    code = "invalid_unicode" if is_lone_surrogate else "invalid_input"
    return InvalidLineError(f"invalid JSON at column {error.colno}: {error.msg}", code)


def _may_have_lost_digits(values: Iterable[Any], room: int) -> bool:
    """Whether a float among `values`, at any depth, may have been an integer. `room`: how many levels they may have."""
    if not room:
        raise InvalidLineError(f"nested more than {MAX_NESTING} levels deep")
    is_lost = False
    # Every value of every row comes by here, hence type() and not isinstance(): twice as fast.
    for value in values:
        kind = type(value)
        if kind is float:
            is_lost = is_lost or abs(value) >= _MAX_EXACT
        elif kind is dict:
            is_lost = _may_have_lost_digits(value.values(), room - 1) or is_lost
        elif kind is list:
            is_lost = _may_have_lost_digits(value, room - 1) or is_lost
    return is_lost


def _with_long_integers(value: object) -> object:
    # orjson refuses integers beyond 64 bits, but takes JSON that is ready.
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return orjson.Fragment(str(value))
    if isinstance(value, dict):
        return {key: _with_long_integers(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_with_long_integers(child) for child in value]
    return value


def _to_json(value: object) -> object:
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value)


def _name(value: object) -> str:
    if value is None:
        return "null"
    return {list: "a list", str: "a string", bool: "true or false"}.get(type(value), "a number")
