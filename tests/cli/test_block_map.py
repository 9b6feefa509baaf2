from __future__ import annotations

import random

import pytest

from infer.cli.block_map import HOLLOW, BlockMap, fold_blocks, legend, render_row
from infer.engine.stats import CACHED, FREE, SHARED, USED


def defined_cell(group: bytes) -> int:
    """The cell of one group, as the module's docstring has it."""
    cached, used, shared = (group.count(state) for state in (CACHED, USED, SHARED))
    if used + shared:
        state, num_blocks = (SHARED if shared >= used else USED), used + shared
    elif cached:
        state, num_blocks = CACHED, cached
    else:
        return FREE
    return state + (HOLLOW if 2 * num_blocks < len(group) else 0)


def drawn(cells: bytes, *, is_ascii: bool = False) -> str:
    return "".join(segment.text for segment in render_row(cells, is_ascii=is_ascii))


def test_blocks_that_fit_have_a_cell_each() -> None:
    states = bytes([FREE, CACHED, USED, SHARED] * 10)
    assert fold_blocks(states, 16, 3) == BlockMap((states[:16], states[16:32], states[32:]), 1)


def test_blocks_that_fill_the_room_exactly_have_a_cell_each() -> None:
    assert fold_blocks(bytes([USED] * 12), 4, 3) == BlockMap((bytes([USED] * 4),) * 3, 1)


def test_one_block_too_many_makes_groups_of_two() -> None:
    assert fold_blocks(bytes([USED] * 13), 4, 3) == BlockMap((bytes([USED] * 4), bytes([USED] * 3)), 2)


@pytest.mark.parametrize(
    ("group", "cell"),
    [
        ([FREE, FREE, FREE, FREE], FREE),
        ([FREE, FREE, FREE, CACHED], CACHED + HOLLOW),
        ([FREE, FREE, CACHED, CACHED], CACHED),
        ([CACHED, CACHED, CACHED, USED], USED + HOLLOW),
        ([FREE, CACHED, USED, USED], USED),
        ([USED, USED, USED, SHARED], USED),
        ([USED, SHARED, FREE, FREE], SHARED),
        ([SHARED, FREE, FREE, FREE], SHARED + HOLLOW),
    ],
)
def test_group_shows_its_highest_rank_and_whether_that_is_half_of_it(group: list[int], cell: int) -> None:
    assert fold_blocks(bytes(group), 1, 1) == BlockMap((bytes([cell]),), 4)


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_any_size_follow_the_definition(seed: int) -> None:
    draw = random.Random(seed)
    states = bytes(draw.choices(range(4), weights=[draw.random() for _ in range(4)], k=draw.randint(1, 5_000)))
    columns, rows = draw.randint(1, 40), draw.randint(1, 20)
    block_map = fold_blocks(states, columns, rows)
    size = block_map.blocks_per_cell
    groups = [states[i : i + size] for i in range(0, len(states), size)]
    expected = bytes(states) if size == 1 else bytes(map(defined_cell, groups))
    assert b"".join(block_map.rows) == expected, seed
    assert len(block_map.rows) <= rows
    assert {len(row) for row in block_map.rows[:-1]} <= {columns}


def test_four_hundred_thousand_blocks_fit_and_none_that_is_held_is_hidden() -> None:
    states = bytearray(400_000)
    states[123_456] = SHARED
    block_map = fold_blocks(bytes(states), 37, 8)
    assert block_map.blocks_per_cell == 1_352
    cells = b"".join(block_map.rows)
    assert len(cells) == 296
    assert {i: cell for i, cell in enumerate(cells) if cell != FREE} == {123_456 // 1_352: SHARED + HOLLOW}


@pytest.mark.parametrize(("num_blocks", "columns", "rows"), [(0, 10, 10), (10, 0, 10), (10, 10, 0), (10, 10, -2)])
def test_map_without_blocks_or_room_is_empty(num_blocks: int, columns: int, rows: int) -> None:
    assert fold_blocks(bytes(num_blocks), columns, rows) == BlockMap((), 1)


def test_marks_differ_without_colour() -> None:
    cells = bytes([FREE, CACHED, CACHED + HOLLOW, USED, USED, USED + HOLLOW, SHARED, SHARED + HOLLOW])
    assert drawn(cells) == "· ▪ ▫ ■ ■ □ ◆ ◇ "
    assert drawn(cells, is_ascii=True) == ". o - # # + @ a "


def test_colours_differ_by_state_and_not_by_share() -> None:
    cells = bytes([FREE, CACHED, USED, SHARED])
    styles = [segment.style for segment in render_row(cells, is_ascii=False)]
    assert len(set(map(str, styles))) == 4
    hollow = bytes(state + HOLLOW for state in cells[1:])
    assert [segment.style for segment in render_row(hollow, is_ascii=False)] == styles[1:]


def test_legend_counts_every_block() -> None:
    states = bytes([FREE] * 1_200 + [CACHED] * 3 + [USED] * 20 + [SHARED])
    assert legend(states, is_ascii=False).plain == "■ 20 used   ◆ 1 shared   ▪ 3 cached   · 1,200 free"
    assert legend(b"", is_ascii=True).plain == "# 0 used   @ 0 shared   o 0 cached   . 0 free"
