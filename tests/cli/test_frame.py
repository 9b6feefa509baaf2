from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from infer.cli.frame import Frame
from infer.cli.run_snapshot import RunSnapshot
from infer.cli.throughput import Throughput
from infer.engine.stats import CACHED, FREE, SHARED, USED, EngineStats

FORTY_BLOCKS = bytes([SHARED] * 2 + [USED] * 17 + [CACHED] * 6 + [FREE] * 15)


def snapshot(
    states: bytes = FORTY_BLOCKS,
    *,
    seconds: float = 192.0,
    done: int = 1_234,
    failed: int = 3,
    total: int | None = 5_000,
    model: str = "smollm2-135m",
    input_name: str = "reviews.parquet",
) -> RunSnapshot:
    stats = EngineStats(
        num_requests_running=128,
        num_requests_waiting=340,
        num_preemptions_total=7,
        num_blocks=len(states),
        block_size=16,
        block_states=states,
        prefix_cache_queries=2_000_000,
        prefix_cache_hits=830_123,
        prompt_tokens_total=round(5_120 * seconds),
        completion_tokens_total=round(812 * seconds),
        num_steps=12_345,
    )
    return RunSnapshot(done, failed, total, seconds, stats, model, input_name, "reviews.infer.parquet")


def frame(last: RunSnapshot) -> Frame:
    throughput = Throughput(snapshot(seconds=0.0, done=0, total=last.rows_total))
    throughput.add(last)
    return Frame(last, throughput)


def shown(last: RunSnapshot, width: int, height: int) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(frame(last))
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def test_frame_at_80x24_with_forty_blocks() -> None:
    expected = """\
╭─ infer  smollm2-135m ──────────────────────────────────────────────────────╮
│ 1,234 of 5,000 rows   3 failed                   elapsed 03:12   eta 09:45 │
│  24%  ━━━━━━━━━━━━━━━━╸                                                    │
│                                                                            │
│ prompt       5,120 tok/s   running         128   cache hits    830,123 tok │
│ generated      812 tok/s   waiting         340   hit rate              41% │
│ KV in use            47%   preempted         7   steps              12,345 │
│                                                                            │
│ KV cache  40 blocks                                       1 cell = 1 block │
│ ◆ ◆ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ▪ ▪ ▪ ▪ ▪ ▪ · · · · · · · · · · · ·  │
│ · · ·                                                                      │
│                                                                            │
│ ■ 17 used   ◆ 2 shared   ▪ 6 cached   · 15 free                            │
╰────────────────────────────────── reviews.parquet → reviews.infer.parquet ─╯
"""
    assert shown(snapshot(), 80, 24) == expected


def test_frame_at_80x24_with_four_hundred_thousand_blocks() -> None:
    states = bytes([SHARED] * 20_000 + [USED] * 90_000 + [CACHED] * 40_000 + [USED, FREE, FREE] * 10_000)
    expected = """\
╭─ infer  smollm2-135m ──────────────────────────────────────────────────────╮
│ 1,234 of 5,000 rows   3 failed                   elapsed 03:12   eta 09:45 │
│  24%  ━━━━━━━━━━━━━━━━╸                                                    │
│                                                                            │
│ prompt       5,120 tok/s   running         128   cache hits    830,123 tok │
│ generated      812 tok/s   waiting         340   hit rate              41% │
│ KV in use            30%   preempted         7   steps              12,345 │
│                                                                            │
│ KV cache  400,000 blocks              1 cell = 1,352 blocks, hollow < half │
│ ◆ ◆ ◆ ◆ ◆ ◆ ◆ ◆ ◆ ◆ ◆ ◆ ◆ ◆ ◆ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■  │
│ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■  │
│ ■ ■ ■ ■ ■ ■ ■ □ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ □  │
│ □ □ □ □ □ □ □ □ □ □ □ □ □ □ □ □ □ □ □ □ □ □ □ · · · · · · · · · · · · · ·  │
│ · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · ·  │
│ · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · ·  │
│ · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · ·  │
│ · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · ·  │
│                                                                            │
│ ■ 100,000 used   ◆ 20,000 shared   ▪ 40,000 cached   · 240,000 free        │
╰────────────────────────────────── reviews.parquet → reviews.infer.parquet ─╯
"""
    assert shown(snapshot(states.ljust(400_000, bytes([FREE]))), 80, 24) == expected


def test_frame_at_200x60_with_four_hundred_thousand_blocks() -> None:
    states = bytes([SHARED] * 20_000 + [USED] * 90_000 + [CACHED] * 40_000 + [USED, FREE, FREE] * 10_000)
    expected = Path(__file__).with_name("frame_200x60.txt").read_text(encoding="utf-8")
    assert shown(snapshot(states.ljust(400_000, bytes([FREE]))), 200, 60) == expected


def test_frame_at_40x10_drops_the_map_and_the_last_figures() -> None:
    expected = """\
1,234 of 5,000 rows   3 failed
elapsed 03:12   eta 09:45
 24%  ━━━━━━━╸
prompt       5,120 tok/s
generated      812 tok/s
KV in use            47%
running              128
waiting              340
preempted              7
"""
    assert shown(snapshot(), 40, 10) == expected


def test_frame_without_blocks_has_no_map() -> None:
    expected = """\
╭─ infer  smollm2-135m ──────────────────────────────────────────────────────╮
│ 1,234 of 5,000 rows   3 failed                   elapsed 03:12   eta 09:45 │
│  24%  ━━━━━━━━━━━━━━━━╸                                                    │
│                                                                            │
│ prompt       5,120 tok/s   running         128   cache hits    830,123 tok │
│ generated      812 tok/s   waiting         340   hit rate              41% │
│ KV in use             0%   preempted         7   steps              12,345 │
╰────────────────────────────────── reviews.parquet → reviews.infer.parquet ─╯
"""
    assert shown(snapshot(b""), 80, 24) == expected


def test_frame_without_a_total_has_no_bar_and_no_end() -> None:
    expected = """\
1,234 rows                                                       elapsed 03:12
prompt       5,120 tok/s     running         128     cache hits    830,123 tok
generated      812 tok/s     waiting         340     hit rate              41%
KV in use            47%     preempted         7     steps              12,345
KV cache  40 blocks                                           1 cell = 1 block
◆ ◆ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ▪ ▪ ▪ ▪ ▪ ▪ · · · · · · · · · · · · · ·
·
■ 17 used   ◆ 2 shared   ▪ 6 cached   · 15 free
"""
    assert shown(snapshot(total=None, failed=0), 80, 12) == expected


def test_frame_shows_hostile_names_literally_and_cuts_long_ones() -> None:
    hostile = snapshot(b"", model="[/foo] \x1b[2J\u202e", input_name="\udcff" + "very_" * 20 + "long.parquet")
    lines = shown(hostile, 80, 24).splitlines()
    assert [lines[0], lines[-1]] == [
        "╭─ infer  [/foo] \\x1b[2J\\u202e ──────────────────────────────────────────────╮",
        "╰─────────────── \\udcffvery_very_very_very_very_ve… → reviews.infer.parquet ─╯",
    ]


def test_frame_on_a_terminal_that_takes_ascii_only() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=stream, width=80, height=24, color_system=None)
    console.print(frame(snapshot()))
    stream.seek(0)
    expected = """\
+- infer  smollm2-135m ------------------------------------------------------+
| 1,234 of 5,000 rows   3 failed                   elapsed 03:12   eta 09:45 |
|  24%  ----------------                                                     |
|                                                                            |
| prompt       5,120 tok/s   running         128   cache hits    830,123 tok |
| generated      812 tok/s   waiting         340   hit rate              41% |
| KV in use            47%   preempted         7   steps              12,345 |
|                                                                            |
| KV cache  40 blocks                                       1 cell = 1 block |
| @ @ # # # # # # # # # # # # # # # # # o o o o o o . . . . . . . . . . . .  |
| . . .                                                                      |
|                                                                            |
| # 17 used   @ 2 shared   o 6 cached   . 15 free                            |
+--------------------------------- reviews.parquet -> reviews.infer.parquet -+
"""
    assert "".join(line.rstrip() + "\n" for line in stream) == expected


def test_frame_without_colour_has_the_same_text_and_no_colour_codes() -> None:
    def printed(*, no_color: bool) -> str:
        console = Console(
            file=io.StringIO(), width=80, height=24, force_terminal=True, color_system="truecolor", no_color=no_color
        )
        with console.capture() as capture:
            console.print(frame(snapshot()))
        return capture.get()

    escape = re.compile(r"\x1b\[([\d;]*)m")
    assert {code for codes in escape.findall(printed(no_color=True)) for code in codes.split(";")} == {"0", "1", "2"}
    assert "38;2;38;139;210" in printed(no_color=False)
    # What is left of the bar is told by its colour alone, and blank without.
    text = re.sub("(?<=╸)━+", lambda rest: " " * len(rest[0]), escape.sub("", printed(no_color=False)))
    assert escape.sub("", printed(no_color=True)) == text


@pytest.mark.parametrize("width", [1, 2, 5, 20, 39, 40, 59, 62, 63, 79, 80, 81, 120])
def test_frame_never_outgrows_the_terminal(width: int) -> None:
    big = snapshot(FORTY_BLOCKS * 300, done=1_234_567, failed=98_765, total=50_000_000, seconds=400_000.0)
    for height in (1, 2, 3, 5, 8, 12, 13, 16, 17, 24, 50):
        lines = shown(big, width, height).splitlines()
        assert len(lines) < max(2, height), (width, height)
        assert max(map(cell_len, lines), default=0) <= max(1, width - 2), (width, height)
