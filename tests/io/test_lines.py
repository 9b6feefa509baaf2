"""Physical lines: split at `\\n` only, numbered as an editor numbers them."""

from __future__ import annotations

import io

import pytest

from infer.io import lines
from infer.io.lines import Line, read_lines


def texts(data: bytes) -> list[tuple[int, bytes | None]]:
    return [(line.number, line.text) for line in read_lines(io.BytesIO(data))]


def test_read_lines_splits_at_line_feeds_only() -> None:
    data = "a\u2028b\u0085c\x0bd\x0ce\rf\ng\n".encode()
    assert texts(data) == [(1, "a\u2028b\u0085c\x0bd\x0ce\rf\n".encode()), (2, b"g\n")]


def test_read_lines_skips_blank_lines_but_counts_them() -> None:
    assert texts(b"\n \t\r\na\n\r\nb") == [(3, b"a\n"), (5, b"b")]


def test_read_lines_drops_a_byte_order_mark_at_the_start_only() -> None:
    assert texts(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n") == [(1, b"a\n"), (2, b"\xef\xbb\xbfb\n")]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_read_lines_finds_none_where_there_are_none(data: bytes) -> None:
    assert texts(data) == []


def test_read_lines_passes_over_a_line_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4)
    data = b"1234\n" + b"x" * 5 + b"\n" + b"y" * 23 + b"\nok\n" + b"z" * 9
    assert texts(data) == [(1, b"1234\n"), (2, None), (3, None), (4, b"ok\n"), (5, None)]


def test_read_lines_says_where_each_line_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4)
    data = b"\xef\xbb\xbfa\n\nlonger\nb"
    assert list(read_lines(io.BytesIO(data))) == [Line(1, 5, b"a\n"), Line(3, 13, None), Line(4, 14, b"b")]


def test_read_lines_stops_at_the_bytes_there_were() -> None:
    assert list(read_lines(io.BytesIO(b"a\nto grow\nnew\n"), num_bytes=4)) == [Line(1, 2, b"a\n"), Line(2, 10, b"to")]
