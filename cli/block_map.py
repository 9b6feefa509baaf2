"""The KV cache as a map: every cell a block, or a group of neighbours where there are more blocks than cells.

A group shows the rank highest in it, held over cached over free: nothing that a sequence holds is ever hidden. Among
held blocks the more frequent of used and shared decides, shared on a tie. The mark is filled where blocks of that rank
are at least half of the group, hollow where they are fewer. So the map says where something is held, and the legend,
which counts every block, how much.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from infer.cli.figures import count
from infer.engine.stats import CACHED, FREE, SHARED, USED

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLLOW = 4
"""Added to the state of a cell in which fewer than half of the blocks are of its rank."""

_NAMES = {USED: "used", SHARED: "shared", CACHED: "cached", FREE: "free"}
# Of middling lightness, so that they hold on dark and on light ground; rich takes the nearest where there are fewer.
_STYLES = {
    USED: Style(color="#268bd2"),
    SHARED: Style(color="#d33682"),
    CACHED: Style(color="#2aa198"),
    FREE: Style(dim=True),
}
# By cell code: free, cached, used, shared, then the hollow ones; told apart without colour too.
_GLYPHS = "·▪■◆·▫□◇"
_ASCII_GLYPHS = ".o#@.-+a"
_RUN = re.compile(rb"(.)\1*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BlockMap:
    """`rows` of cells, one byte each: a state, plus `HOLLOW`. The last row may be shorter."""

    rows: tuple[bytes, ...]
    blocks_per_cell: int


def fold_blocks(states: bytes, max_columns: int, max_rows: int) -> BlockMap:
    """Fit `states`, one byte a block, into the room there is, with as few blocks a cell as it allows."""
    num_cells = max_columns * max_rows
    if not states or num_cells < 1:
        return BlockMap((), 1)
    blocks_per_cell = -(-len(states) // num_cells)
    cells = states if blocks_per_cell == 1 else _group(states, blocks_per_cell)
    return BlockMap(tuple(cells[i : i + max_columns] for i in range(0, len(cells), max_columns)), blocks_per_cell)


def _group(states: bytes, blocks_per_cell: int) -> bytes:
    blocks = np.frombuffer(states, np.uint8)
    starts = np.arange(0, len(blocks), blocks_per_cell)
    sizes = np.diff(starts, append=len(blocks))
    cached, used, shared = (
        np.add.reduceat(blocks == state, starts, dtype=np.int32) for state in (CACHED, USED, SHARED)
    )
    held = used + shared
    cells = np.where(held > 0, np.where(shared >= used, SHARED, USED), np.where(cached > 0, CACHED, FREE))
    of_rank = np.where(held > 0, held, np.where(cached > 0, cached, sizes))
    codes = cells + HOLLOW * (2 * of_rank < sizes)
    return bytes(codes.astype(np.uint8))


def render_row(cells: bytes, *, is_ascii: bool) -> Iterator[Segment]:
    """One segment a run of equal cells; a space between cells makes their pitch about square."""
    glyphs = _ASCII_GLYPHS if is_ascii else _GLYPHS
    for run in _RUN.finditer(cells):
        cell = run[0][0]
        yield Segment(f"{glyphs[cell]} " * len(run[0]), _STYLES[cell % HOLLOW])


def legend(states: bytes, *, is_ascii: bool) -> Text:
    """What each mark means and how many blocks are in that state now."""
    glyphs = _ASCII_GLYPHS if is_ascii else _GLYPHS
    entries = [
        Text.assemble((glyphs[state], _STYLES[state]), f" {count(states.count(state))} ", (name, "dim"))
        for state, name in _NAMES.items()
    ]
    return Text("   ", no_wrap=True, overflow="ellipsis").join(entries)
