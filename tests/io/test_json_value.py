"""JSON lines to Python values and back."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest

from infer.io.json_value import MAX_NESTING, InvalidLineError, dump, parse_object


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"a": 1}  \r\n', {"a": 1}),
        (b"{}", {}),
        ('{"a": "x\u2028y"}'.encode(), {"a": "x\u2028y"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": 18446744073709551615, "b": -9223372036854775808}', {"a": 2**64 - 1, "b": -(2**63)}),
        (b'{"a": [{"b": 123456789012345678901234567890}]}', {"a": [{"b": 123456789012345678901234567890}]}),
        (b'{"a": 1e300}', {"a": 1e300}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_parse_object_reads_exactly_what_is_there(line: bytes, value: dict[str, object]) -> None:
    assert parse_object(line) == value


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 1,}',
        b'{"a": ',
        b"\0\0\0",
        b'{"a": "\\ud835"}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
    ],
)
def test_parse_object_refuses_what_is_no_json(line: bytes) -> None:
    with pytest.raises(InvalidLineError, match=r"^invalid JSON at column \d+: [a-zA-Z0-9 ,:-]+$"):
        parse_object(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": "\xff"}', "not valid UTF-8 at byte 8"),
        (b'{"a": "\xed\xa0\xb5"}', "not valid UTF-8 at byte 8"),
        (b'{"\xc0\x80": 1}', "not valid UTF-8 at byte 3"),
        (b'{"a": "\\ud835"}', "invalid JSON at column 8: no low surrogate in string"),
        (b'{"a": "\\udc00\\ud800"}', "invalid JSON at column 8: invalid high surrogate in string"),
    ],
)
def test_parse_object_has_a_code_for_text_that_is_none(line: bytes, message: str) -> None:
    with pytest.raises(InvalidLineError) as caught:
        parse_object(line)
    assert (str(caught.value), caught.value.code) == (message, "invalid_unicode")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"[1]", "a list"),
        (b"1.5", "a number"),
        (b"null", "null"),
        (b"true", "true or false"),
        (b'"a"', "a string"),
    ],
)
def test_parse_object_says_what_it_found_in_place_of_an_object(line: bytes, found: str) -> None:
    with pytest.raises(InvalidLineError, match=f"^expected an object, found {found}$"):
        parse_object(line)


def nested(levels: int) -> bytes:
    """An object of `levels` levels, itself counted."""
    return b'{"a": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_parse_object_bounds_how_deep_a_row_is_nested() -> None:
    assert dump(parse_object(nested(MAX_NESTING))) == nested(MAX_NESTING).replace(b" ", b"")
    with pytest.raises(InvalidLineError, match=r"^nested more than 128 levels deep$"):
        parse_object(nested(MAX_NESTING + 1))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": "x\u2028\u00e9", "b": [1.5, None, True]}, '{"a":"x\u2028\u00e9","b":[1.5,null,true]}'),
        ({"a": 10**30, "b": [-(10**30)], "c": {"d": 2**64}}, f'{{"a":{10**30},"b":[-{10**30}],"c":{{"d":{2**64}}}}}'),
        ({"a": 10**30, "b": float("nan")}, f'{{"a":{10**30},"b":null}}'),
        ([("key", 1)], '[["key",1]]'),
        (datetime.datetime(2024, 1, 2, 3, 4, 5), '"2024-01-02T03:04:05"'),
        (datetime.date(2024, 1, 2), '"2024-01-02"'),
        (datetime.timedelta(minutes=1), "60.0"),
        (decimal.Decimal("1.50"), '"1.50"'),
        (b"\x00\xff", '"AP8="'),
    ],
)
def test_dump_writes_every_value_a_row_can_hold(value: Any, text: str) -> None:
    assert dump(value).decode() == text
