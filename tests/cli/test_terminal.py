from __future__ import annotations

import errno
import io

import pytest

from infer.cli.terminal import can_redraw, open_console, safe


class Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_INTERACTIVE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def printed(*, is_terminal: bool) -> str:
    stream = Stream(is_terminal=is_terminal)
    open_console(stream).print("[/red] :smile: 12", style="red")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, naïve 日本語 👩‍👩‍👧", "plain text, naïve 日本語 👩‍👩‍👧"),
        ("[/foo] [type='X'] :smile:", "[/foo] [type='X'] :smile:"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m\x85\x7f\x00", "\\x9b31m\\x85\\x7f\\x00"),
        ("two\r\nlines\t.", "two\\r\\nlines\\t."),
        ("a\u202eb\u2066c\u2069d\u200fe\u061cf", "a\\u202eb\\u2066c\\u2069d\\u200fe\\u061cf"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("\ud835 and \udcff", "\\ud835 and \\udcff"),
        ("C:\\new", "C:\\new"),
    ],
)
def test_safe_shows_what_could_steer_a_terminal(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_console_on_a_terminal_is_coloured_and_reads_no_markup() -> None:
    assert printed(is_terminal=True) == "\x1b[31m[/red] :smile: 12\x1b[0m\n"


def test_console_on_a_pipe_writes_no_escape_codes() -> None:
    assert printed(is_terminal=False) == "[/red] :smile: 12\n"


def test_console_with_no_color_has_none_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert printed(is_terminal=True) == "[/red] :smile: 12\n"


@pytest.mark.parametrize(("value", "is_coloured"), [("1", True), ("3", True), ("0", False), ("", False)])
def test_console_with_force_color_is_coloured_on_a_pipe(
    monkeypatch: pytest.MonkeyPatch, value: str, is_coloured: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR", value)
    assert printed(is_terminal=False).startswith("\x1b[31m") is is_coloured


@pytest.mark.parametrize(
    ("is_terminal", "environment", "expected"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "dumb", "FORCE_COLOR": "1"}, False),
        (True, {"TTY_INTERACTIVE": "0"}, False),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, False),
        (False, {"TTY_INTERACTIVE": "1"}, False),
    ],
)
def test_only_a_terminal_that_is_not_dumb_can_be_redrawn(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, environment: dict[str, str], expected: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert can_redraw(open_console(Stream(is_terminal=is_terminal))) is expected


class StreamThatFails(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error
        self.num_writes = 0

    def write(self, text: str) -> int:
        self.num_writes += 1
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "no space left on device")])
def test_console_goes_silent_when_its_stream_cannot_be_written(error):
    stream = StreamThatFails(error)
    console = open_console(stream)
    for _ in range(3):
        console.print("a line")
    assert stream.num_writes == 1


def test_console_is_silent_where_there_is_no_stream():
    open_console(None).print("a line")
