from __future__ import annotations

import io
from datetime import datetime, timedelta

import pytest
from rich.console import Console

from infer.cli.progress import LineView
from infer.cli.run_snapshot import RunSnapshot
from infer.engine.stats import EngineStats

BEGIN = datetime(2026, 3, 1, 23, 59, 30)


class Run:
    """A run on a clock of its own: ten rows, 5,120 prompt tokens and 812 generated ones a second."""

    def __init__(self, total: int | None = 5_000) -> None:
        self.seconds = 0.0
        self.total = total
        self.log = io.StringIO()
        self.console = Console(
            file=self.log,
            width=40,
            get_time=lambda: 1_000 + self.seconds,
            get_datetime=lambda: BEGIN + timedelta(seconds=self.seconds),
        )

    def snapshot(self) -> RunSnapshot:
        stats = EngineStats(
            num_requests_running=128,
            num_requests_waiting=1_340,
            prompt_tokens_total=round(5_120 * self.seconds),
            completion_tokens_total=round(812 * self.seconds),
        )
        rows = round(10 * self.seconds)
        return RunSnapshot(rows, rows // 100, self.total, self.seconds, stats, "model", "in.parquet", "out.parquet")

    def times(self) -> list[float]:
        """The second of the run at which each line was written."""
        lines = self.log.getvalue().splitlines()
        return [(datetime.fromisoformat(line[:19]) - BEGIN).total_seconds() for line in lines]


def test_lines_are_whole_and_carry_time_progress_and_rates() -> None:
    run = Run()
    with LineView(run.console, run.snapshot) as view:
        for second in range(1, 14):
            run.seconds = second
            view.update()
        run.seconds = 500
    assert run.log.getvalue() == (
        "2026-03-01 23:59:35  50/5,000 rows  1%  0 failed  prompt 5,120 tok/s  generated 812 tok/s"
        "  running 128  waiting 1,340  eta 08:15\n"
        "2026-03-01 23:59:43  130/5,000 rows  2%  1 failed  prompt 5,120 tok/s  generated 812 tok/s"
        "  running 128  waiting 1,340  eta 08:07\n"
        "2026-03-02 00:07:50  5,000/5,000 rows  100%  50 failed  prompt 5,120 tok/s  generated 812 tok/s"
        "  running 128  waiting 1,340  eta 00:00\n"
    )


def test_lines_without_a_total_promise_no_end() -> None:
    run = Run(total=None)
    with LineView(run.console, run.snapshot):
        run.seconds = 4
    assert run.log.getvalue() == (
        "2026-03-01 23:59:34  40 rows  0 failed  prompt 5,120 tok/s  generated 812 tok/s  running 128  waiting 1,340\n"
    )


def test_lines_come_every_five_seconds_at_first_and_every_minute_later() -> None:
    run = Run()
    with LineView(run.console, run.snapshot) as view:
        for second in range(600):
            run.seconds = second
            view.update()
    times = run.times()
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    assert gaps[:-1] == [5, 8, 12, 17, 26, 38, 57, 60, 60, 60, 60, 60, 60, 60]


def test_message_is_one_line_whatever_is_in_it() -> None:
    run = Run()
    LineView(run.console, run.snapshot).message("[/foo] [bold]\x1b[2J\x1b]0;x\x07 two\nlines, " + "wide " * 20)
    assert run.log.getvalue() == (
        "2026-03-01 23:59:30  [/foo] [bold]\\x1b[2J\\x1b]0;x\\x07 two\\nlines, " + "wide " * 20 + "\n"
    )


def test_interrupted_run_ends_without_a_last_line() -> None:
    run = Run()

    def interrupted() -> None:
        with LineView(run.console, run.snapshot):
            run.seconds = 4
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert run.log.getvalue() == ""
