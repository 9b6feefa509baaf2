from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import textwrap

import pytest
from rich.console import Console

from infer.cli.display import LiveView, open_view
from infer.cli.progress import LineView
from infer.cli.run_snapshot import RunSnapshot
from infer.cli.stop_request import Stopped, StopRequest
from infer.engine.stats import SHARED, USED, EngineStats

COLOUR = re.compile(rb"\x1b\[[\d;]*m")
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Run:
    """A run on a clock of its own; each frame costs `seconds_a_frame`."""

    def __init__(self, seconds_a_frame: float = 0.0) -> None:
        self.seconds = 0.0
        self.seconds_a_frame = seconds_a_frame
        self.num_frames = -1  # The view's first snapshot is where its rates begin.
        self.output = io.StringIO()
        self.console = Console(
            file=self.output,
            width=80,
            height=24,
            force_terminal=True,
            color_system=None,
            markup=False,
            get_time=lambda: self.seconds,
            _environ={},
        )

    def snapshot(self) -> RunSnapshot:
        self.seconds += self.seconds_a_frame
        self.num_frames += 1
        stats = EngineStats(
            num_blocks=40,
            block_states=bytes([USED] * 30 + [SHARED] * 10),
            prompt_tokens_total=round(5_120 * self.seconds),
            completion_tokens_total=round(812 * self.seconds),
        )
        rows = round(10 * self.seconds)
        return RunSnapshot(rows, 0, 5_000, self.seconds, stats, "smollm2-135m", "in.parquet", "out.parquet")


def screen(output: str, width: int = 80) -> list[str]:
    """What a terminal shows after `output`: the few codes the view uses, lines that wrap, an echoed `^C`."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|.", output, re.DOTALL):
        if token == "\n":
            row, column = row + 1, 0
        elif token == "\r":
            column = 0
        elif token.startswith("\x1b"):
            parameter, code = token[2:-1], token[-1]
            assert code in "AKhlm", token
            if code == "A":
                row -= int(parameter)
                assert row >= 0
            elif code == "K":
                assert parameter == "2"
                lines[row] = ""
        else:
            if column == width:
                row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
            lines[row] = lines[row].ljust(column)[:column] + token + lines[row][column + 1 :]
            column += 1
        lines += [""] * (row + 1 - len(lines))
    return [line.rstrip() for line in lines]


def test_terminal_gets_the_live_view_and_anything_else_gets_lines() -> None:
    run = Run()
    assert isinstance(open_view(run.console, run.snapshot), LiveView)
    assert isinstance(open_view(Console(file=io.StringIO(), force_terminal=False), run.snapshot), LineView)


def test_live_view_redraws_in_place_and_leaves_only_messages() -> None:
    run = Run()
    with LiveView(run.console, run.snapshot) as view:
        run.seconds = 12.0
        view.update()
        view.message("[/foo] \x1b[2J two\nlines")
        expected = """\
[/foo] \\x1b[2J two\\nlines
╭─ infer  smollm2-135m ──────────────────────────────────────────────────────╮
│ 120 of 5,000 rows                                elapsed 00:12   eta 08:08 │
│   2%  ━╸                                                                   │
│                                                                            │
│ prompt       5,120 tok/s   running           0   cache hits          0 tok │
│ generated      812 tok/s   waiting           0   hit rate               0% │
│ KV in use           100%   preempted         0   steps                   0 │
│                                                                            │
│ KV cache  40 blocks                                       1 cell = 1 block │
│ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ◆ ◆ ◆ ◆ ◆ ◆ ◆  │
│ ◆ ◆ ◆                                                                      │
│                                                                            │
│ ■ 30 used   ◆ 10 shared   ▪ 0 cached   · 0 free                            │
╰───────────────────────────────────────────────── in.parquet → out.parquet ─╯
"""
        assert screen(run.output.getvalue()) == expected.splitlines()
    assert "\n".join(screen(run.output.getvalue())).rstrip() == "[/foo] \\x1b[2J two\\nlines"


@pytest.mark.parametrize(("seconds_a_frame", "num_frames"), [(0.0, 241), (0.001, 240), (0.01, 30), (0.1, 3)])
def test_live_view_takes_under_one_percent_of_the_run(seconds_a_frame: float, num_frames: int) -> None:
    run = Run(seconds_a_frame)
    with LiveView(run.console, run.snapshot) as view:
        while run.seconds < 60:
            run.seconds += 1 / 64
            view.update()
    assert run.num_frames == num_frames
    assert run.num_frames * seconds_a_frame < 0.01 * 60


def test_live_view_leaves_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run()
    with LiveView(run.console, run.snapshot):
        print("data")
    assert capsys.readouterr().out == "data\n"


def test_live_view_shows_what_libraries_write_to_standard_error_above_it() -> None:
    run = Run()
    with LiveView(run.console, run.snapshot):
        print("warning: [/foo] is old", file=sys.stderr)
        lines = screen(run.output.getvalue())
    assert lines[0] == "warning: [/foo] is old"
    assert lines[1].startswith("╭─ infer")


def test_live_view_gives_the_cursor_back_when_the_first_frame_fails() -> None:
    run = Run()
    snapshots = iter([run.snapshot()])
    view = LiveView(run.console, lambda: next(snapshots))
    with pytest.raises(StopIteration):
        view.__enter__()
    assert run.output.getvalue().startswith(HIDE_CURSOR)
    assert SHOW_CURSOR in run.output.getvalue()
    assert "\n".join(screen(run.output.getvalue())).rstrip() == ""


class InterruptedOnce(io.StringIO):
    """A terminal on which somebody presses Ctrl-C when a certain text has just arrived."""

    def __init__(self, after: str) -> None:
        super().__init__()
        self._after: str | None = after

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._after is not None and self._after in text:
            self._after = None
            signal.raise_signal(signal.SIGINT)
        return written


@pytest.mark.parametrize("view_class", [LiveView, LineView])
def test_control_c_during_a_message_is_heard_when_the_message_is_whole(view_class: type[LiveView | LineView]) -> None:
    run = Run()
    run.console.file = output = InterruptedOnce(after="a line")
    with StopRequest() as stop, pytest.raises(Stopped), view_class(run.console, run.snapshot, stop.undisturbed) as view:
        view.message("a line")
    # What rich did not get to call written, it would write here.
    run.console.print("end")
    assert "\n".join(screen(output.getvalue())).rstrip().endswith("a line\nend")
    assert output.getvalue().count("a line") == 1


CHILD = """
    import fcntl, signal, sys, termios
    from infer.cli.display import open_view
    from infer.cli.run_snapshot import RunSnapshot
    from infer.cli.stop_request import Stopped, StopRequest
    from infer.cli.terminal import open_console
    from infer.engine.stats import EngineStats

    # Started in the background of a shell, a process ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    stats = EngineStats(num_blocks=40, block_states=bytes(40))
    snapshot = lambda: RunSnapshot(1, 0, 10, 1.0, stats, "model", "in.parquet", "out.parquet")
    console = open_console(sys.stderr)
    try:
        with StopRequest() as stop, open_view(console, snapshot, stop.undisturbed) as view:
            view.message("begin")
            {step}
    except (ValueError, Stopped) as error:
        console.print(f"error: {{type(error).__name__}}")
"""


def run_on_terminal(step: str, *, press_control_c: bool = False) -> str:
    """Everything a child, whose standard streams are an 80x24 terminal, puts on that terminal."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD).format(step=step)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", "PYTHONUTF8": "1"},
    )
    os.close(terminal)
    output = b""
    while chunk := read(controller):
        output += chunk
        # The terminal echoes ^C where its cursor is: wait for the whole frame under the message.
        if press_control_c and b"begin" in output and COLOUR.sub(b"", output).endswith("╯".encode()):
            os.write(controller, b"\x03")
            press_control_c = False
    os.close(controller)
    assert child.wait(timeout=30) == 0
    return output.decode()


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux says EIO when the last process has left the terminal.
        return b""


@pytest.mark.parametrize(
    ("step", "press_control_c", "error"),
    [("raise ValueError", False, "ValueError"), ("signal.pause()", True, "Stopped")],
)
def test_terminal_is_as_it_was_after(step: str, press_control_c: bool, error: str) -> None:
    output = run_on_terminal(step, press_control_c=press_control_c)
    assert output.count(HIDE_CURSOR) == output.count(SHOW_CURSOR) == 1
    assert output.index(HIDE_CURSOR) < output.index(SHOW_CURSOR) < output.index(f"error: {error}")
    assert "\n".join(screen(output)).rstrip() == f"begin\nerror: {error}"
