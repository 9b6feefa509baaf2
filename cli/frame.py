"""The picture of a run, drawn to the size of the terminal: progress, figures, block map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import ROUNDED
from rich.console import Group
from rich.constrain import Constrain
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.text import Text
from tqdm import tqdm

from infer.cli.block_map import fold_blocks, legend, render_row
from infer.cli.figures import count, percent, rate
from infer.cli.terminal import safe

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from infer.cli.run_snapshot import RunSnapshot
    from infer.cli.throughput import Throughput

# Of middling lightness, so that they hold on dark and on light ground.
_ACCENT = "#268bd2"
_ALARM = "#dc322f"

_ECHO_COLUMNS = 2
"""Kept free at the right: the terminal echoes `^C` behind the last line, and were that full, one line further down."""
_BORDER_COLUMNS, _BORDER_ROWS = 4, 2
_MIN_FRAMED = (60, 12)
_MIN_SPACED_HEIGHT = 16
_MIN_GAP = 3
_SHARE_WIDTH = len("100%  ")
_LABEL_WIDTH = 10
_FIGURE_WIDTHS = (24, 19, 25)
"""Of a label and its value, by group; the values stand at the right end, so that they grow without moving."""
_MAP_SHARE = 0.5
"""Most of the height that the map takes, however large the terminal."""


class Frame:
    """Leaves out what there is no room for: the border, the space between the parts, the map, the last figures."""

    def __init__(self, snapshot: RunSnapshot, throughput: Throughput) -> None:
        self._snapshot = snapshot
        self._throughput = throughput

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = max(1, options.max_width - _ECHO_COLUMNS), options.size.height - 1
        if width < _MIN_FRAMED[0] or height < _MIN_FRAMED[1]:
            yield Constrain(Group(*self._parts(console, options.update(width=width), height)), width)
            return
        snapshot = self._snapshot
        inside = options.update(width=width - _BORDER_COLUMNS)
        names = [_clip(name, (inside.max_width - 6) // 2) for name in (snapshot.input_name, snapshot.output_name)]
        yield Panel(
            Group(*self._parts(console, inside, height - _BORDER_ROWS)),
            box=ROUNDED,
            border_style="dim",
            title=_line(("infer  ", "bold not dim"), (_clip(snapshot.model, inside.max_width - 10), "not dim")),
            title_align="left",
            subtitle=_line((" -> " if options.ascii_only else " → ").join(names)),
            subtitle_align="right",
            width=width,
        )

    def _parts(self, console: Console, options: ConsoleOptions, height: int) -> list[RenderableType]:
        """At most `height` lines, each a renderable of its own."""
        progress = self._progress(console, options)[:height]
        figures = self._figures(options.max_width)[: height - len(progress)]
        space: list[RenderableType] = [Text()] if height >= _MIN_SPACED_HEIGHT else []
        room = height - len(progress) - len(figures) - 3 * len(space)
        block_map = self._block_map(options, min(room, round(_MAP_SHARE * height)), space)
        return [*progress, *space, *figures, *(space if block_map else []), *block_map]

    def _progress(self, console: Console, options: ConsoleOptions) -> list[RenderableType]:
        snapshot, width = self._snapshot, options.max_width
        total = snapshot.rows_total
        rows = _line((count(snapshot.rows_done), "bold"))
        time = _line(("elapsed ", "dim"), tqdm.format_interval(snapshot.seconds))
        if total is not None:
            seconds_left = self._throughput.seconds_left
            rows.append(f" of {count(total)}", "dim")
            time.append("   eta ", "dim")
            time.append("--:--" if seconds_left is None else tqdm.format_interval(seconds_left))
        rows.append(" rows", "dim")
        if snapshot.rows_resumed:
            rows.append(f" ({count(snapshot.rows_resumed)} resumed)", "dim")
        if snapshot.rows_saved is not None:
            rows.append(f"   {count(snapshot.rows_saved)} saved", "dim")
        if snapshot.rows_failed:
            rows.append(f"   {count(snapshot.rows_failed)} failed", _ALARM)
        lines = _spread(rows, time, width)
        if total is not None and width > _SHARE_WIDTH:
            share = percent(snapshot.rows_done, total).rjust(_SHARE_WIDTH - 2)
            bar = ProgressBar(
                total=total,
                completed=snapshot.rows_done,
                width=width - _SHARE_WIDTH,
                style="dim",
                complete_style=_ACCENT,
                finished_style=_ACCENT,
            )
            lines.append(Segments([Segment(f"{share}  "), *console.render(bar, options), Segment.line()]))
        return lines

    def _figures(self, width: int) -> list[RenderableType]:
        stats, throughput = self._snapshot.stats, self._throughput
        groups = [
            [
                ("prompt", rate(throughput.prompt_tokens_per_second)),
                ("generated", rate(throughput.completion_tokens_per_second)),
                ("KV in use", percent(stats.kv_cache_usage, 1)),
            ],
            [
                ("running", count(stats.num_requests_running)),
                ("waiting", count(stats.num_requests_waiting + stats.num_requests_swapped)),
                ("preempted", count(stats.num_preemptions_total)),
            ],
            [
                ("cache hits", f"{count(stats.prefix_cache_hits)} tok"),
                ("hit rate", percent(stats.prefix_cache_hits, stats.prefix_cache_queries)),
                ("steps", count(stats.num_steps)),
            ],
        ]
        gap = (width - sum(_FIGURE_WIDTHS)) // (len(groups) - 1)
        if gap < _MIN_GAP:
            return [_figure(figure, min(width, _FIGURE_WIDTHS[0])) for group in groups for figure in group]
        lines: list[RenderableType] = []
        for figures in zip(*groups, strict=True):
            columns = [_figure(*column) for column in zip(figures, _FIGURE_WIDTHS, strict=True)]
            lines.append(_line(" " * gap).join(columns))
        return lines

    def _block_map(self, options: ConsoleOptions, height: int, space: list[RenderableType]) -> list[RenderableType]:
        """Heading, at most `height` - 2 rows of cells, legend; nothing where not even one row fits."""
        stats, is_ascii = self._snapshot.stats, options.ascii_only
        block_map = fold_blocks(stats.block_states, (options.max_width + 1) // 2, height - 2)
        if not block_map.rows:
            return []
        cell = block_map.blocks_per_cell
        size = _line("KV cache", (f"  {count(stats.num_blocks)} blocks", "dim"))
        scale = _line(("1 cell = 1 block" if cell == 1 else f"1 cell = {count(cell)} blocks, hollow < half", "dim"))
        return [
            *_spread(size, scale, options.max_width)[:1],
            *(Segments([*render_row(row, is_ascii=is_ascii), Segment.line()]) for row in block_map.rows),
            *space,
            legend(stats.block_states, is_ascii=is_ascii),
        ]


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _figure(figure: tuple[str, str], width: int) -> Text:
    label, value = figure
    return _line((f"{label:<{_LABEL_WIDTH}}", "dim"), f"{value:>{max(0, width - _LABEL_WIDTH)}}")


def _spread(left: Text, right: Text, width: int) -> list[RenderableType]:
    """`left` and `right` at the two ends of one line, or below each other where that is too short."""
    gap = width - left.cell_len - right.cell_len
    return [Text.assemble(left, " " * gap, right)] if gap >= _MIN_GAP else [left, right]


def _clip(name: str, width: int) -> str:
    text = Text(safe(name))
    text.truncate(width, overflow="ellipsis")
    return text.plain
