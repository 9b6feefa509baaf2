"""Rows between the input and the engine: equal ones together, and in which order they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer.cli.row_window import RequestSize, RowWindow, SharedRequest, Window
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.io.row import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
DRAWN = SamplingParams(temperature=1.0, max_tokens=8)


def make_window(**settings: Any) -> RowWindow:
    return RowWindow(Window(max_num_seqs=4, **{"block_size": 1, **settings}))


def add(window: RowWindow, index: int, prompt: Sequence[int], params: SamplingParams = GREEDY, **fields: Any) -> None:
    window.add(Row(index, None), Request(index, tuple(prompt), params, **fields))


def take_all(window: RowWindow) -> list[SharedRequest]:
    return list(iter(window.take, None))


def taken(window: RowWindow, most: int = 1000) -> list[int]:
    """Ids of the next requests."""
    requests = (window.take() for _ in range(min(most, len(window))))
    return [each.request_id for each in requests if each is not None]


def test_rows_leave_as_they_came_where_nothing_is_planned():
    window = make_window(order="input")
    for index, prompt in enumerate([[1, 1], [2, 2], [1, 1], [2, 2]]):
        add(window, index, prompt)
    assert window.is_full
    assert not window.is_open
    assert [[row.index for row in each.rows] for each in take_all(window)] == [[0], [1], [2], [3]]
    assert window.take() is None


def test_rows_of_a_prefix_leave_together_with_what_is_new_in_each():
    window = make_window()
    for index, prompt in enumerate([[1, 1, 1], [2, 2], [1, 1, 2], [2, 3]]):
        add(window, index, prompt)
    window.end()
    assert [(each.request_id, each.num_new_tokens) for each in take_all(window)] == [(0, 3), (2, 1), (1, 2), (3, 1)]


def test_request_leaves_as_it_came():
    window = make_window()
    request = Request(5, (1, 2, 70_000), DRAWN, seed=11, priority=-3)
    window.add(Row(5, None), request)
    assert [each.request() for each in take_all(window)] == [request]


def test_equal_requests_are_one():
    window = make_window()
    for index, prompt in enumerate([[1, 2], [1], [1, 2], [1, 2]]):
        add(window, index, prompt, seed=index)
    assert sorted([row.index for row in each.rows] for each in take_all(window)) == [[0, 2, 3], [1]]


@pytest.mark.parametrize(
    ("fields", "is_equal"),
    [
        ({"params": GREEDY, "seed": 2}, True),
        ({"params": SamplingParams(temperature=0.0, max_tokens=8, logit_bias={3: 1.0})}, False),
        ({"params": SamplingParams(temperature=0.0, max_tokens=9)}, False),
        ({"priority": 1}, False),
    ],
)
def test_greedy_requests_are_equal_whatever_their_seed(fields, is_equal):
    window = make_window()
    add(window, 0, [1, 2], seed=1)
    add(window, 1, [1, 2], **fields)
    assert len(window) == (1 if is_equal else 2)


@pytest.mark.parametrize(("seed", "is_equal"), [(1, True), (2, False)])
def test_drawn_requests_are_equal_with_the_same_seed_only(seed, is_equal):
    window = make_window()
    add(window, 0, [1, 2], DRAWN, seed=1)
    add(window, 1, [1, 2], DRAWN, seed=seed)
    assert len(window) == (1 if is_equal else 2)


def test_beams_do_not_depend_on_a_seed():
    window, params = make_window(), SamplingParams(beam_width=2, n=2)
    add(window, 0, [1, 2], params, seed=1)
    add(window, 1, [1, 2], params, seed=2)
    assert len(window) == 1


def test_row_joins_an_equal_one_that_has_left_until_that_has_its_answer():
    window = make_window()
    add(window, 0, [1, 2])
    (first,) = take_all(window)
    add(window, 1, [1, 2])
    assert [row.index for row in first.rows] == [0, 1]
    assert len(window) == 0
    window.forget(first)
    add(window, 2, [1, 2])
    assert [each.request_id for each in take_all(window)] == [2]
    assert [row.index for row in first.rows] == [0, 1]


def test_what_is_read_while_a_window_grows_is_planned_with_what_is_left_of_it():
    window = make_window()
    for index in range(4):
        add(window, index, [index % 2, index])
    assert taken(window, 1) == [0]
    # Six tokens are left.
    add(window, 4, [0, 4])
    add(window, 5, [1, 5])
    assert taken(window, 1) == [2]
    add(window, 6, [0, 6])
    add(window, 7, [1, 7])
    assert taken(window) == [4, 6, 1, 3, 5, 7]


def test_groups_that_ran_last_go_on_first_though_others_began_before_them():
    window = make_window()
    for index, prompt in enumerate([[1, 1], [2, 1], [3, 1]]):
        add(window, index, prompt)
    assert taken(window, 2) == [0, 1]
    for index, prompt in enumerate([[0, 1], [1, 2], [2, 2], [3, 2]], start=3):
        add(window, index, prompt)
    assert taken(window) == [5, 4, 2, 6, 3]


def test_window_that_is_full_takes_nothing_in():
    window = make_window(max_window_tokens=8)
    for index in range(4):
        add(window, index, [index % 2, index])
    assert window.is_full
    assert not window.is_open
    assert taken(window, 1) == [0]
    for index in range(4, 8):
        add(window, index, [index % 2, index])
    # The next begins where this one ends.
    assert taken(window) == [2, 1, 3, 5, 7, 4, 6]


def test_window_is_full_of_rows_too():
    window = make_window(max_pending_rows=6)
    for index in range(3):
        assert not window.is_full
        add(window, index, [index])
    assert window.is_full


def test_last_rows_go_by_the_length_of_their_answers_though_they_were_planned_before_it_was_known():
    window = make_window()
    for index, max_tokens in enumerate([5, 6, 7, 6]):
        add(window, index, [index], SamplingParams(temperature=0.0, max_tokens=max_tokens))
    assert taken(window, 1) == [0]
    window.end()
    assert taken(window) == [2, 1, 3]


def test_priority_comes_before_the_prefix():
    window = make_window()
    for index, priority in enumerate([1, 0, 1, 0, -1]):
        add(window, index, [index % 2, index], priority=priority)
    window.end()
    assert taken(window) == [4, 1, 3, 0, 2]


def test_largest_is_of_prompt_and_answer_and_of_sequences():
    window = make_window()
    assert window.largest() is None
    add(window, 0, [1] * 9, SamplingParams(max_tokens=3))
    add(window, 1, [1] * 2, SamplingParams(max_tokens=20))
    add(window, 2, [1], SamplingParams(max_tokens=2, n=5))
    assert window.largest() == RequestSize(num_tokens=22, num_sequences=5)


class TightCache:
    """Blocks of prompts, of which so many are kept: the least recently used goes first, tails before heads."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._blocks: dict[tuple[int, ...], None] = {}

    def run(self, prompt: Sequence[int]) -> int:
        """Compute a prompt. Returns how many of its tokens were there."""
        ends = range(self._block_size, len(prompt) + 1, self._block_size)
        keys = [tuple(prompt[:end]) for end in ends]
        usable = keys[: (len(prompt) - 1) // self._block_size]
        num_hits = next((i for i, key in enumerate(usable) if key not in self._blocks), len(usable))
        for key in reversed(keys):
            self._blocks.pop(key, None)
            self._blocks[key] = None
        while len(self._blocks) > self._num_blocks:
            del self._blocks[next(iter(self._blocks))]
        return num_hits * self._block_size


@given(
    groups=st.lists(st.integers(0, 15), min_size=1, max_size=300),
    reads=st.lists(st.integers(1, 64), min_size=1),
    takes=st.lists(st.integers(0, 40), min_size=1),
    max_window_tokens=st.integers(1, 2_000),
    max_pending_rows=st.integers(2, 200),
)
def test_every_row_leaves_once_whatever_the_window(groups, reads, takes, max_window_tokens, max_pending_rows):
    window = make_window(max_window_tokens=max_window_tokens, max_pending_rows=max_pending_rows)
    rows = [(index, [group, index % 5]) for index, group in enumerate(groups)]
    left: list[int] = []
    step = 0
    while rows or len(window):
        for _ in range(reads[step % len(reads)]):
            if rows and not window.is_full:
                add(window, *rows.pop(0))
        if not rows:
            window.end()
        # Nothing that can be taken is ever held back for good.
        for _ in range(max(1, takes[step % len(takes)])):
            if (shared := window.take()) is not None:
                left += [row.index for row in shared.rows]
                window.forget(shared)
        step += 1
        assert step <= 2 * len(groups) + 1
    assert sorted(left) == list(range(len(groups)))


@pytest.mark.parametrize("num_rows", [256, 1000])
@settings(max_examples=10)
@given(order=st.randoms(use_true_random=False))
def test_cache_of_four_groups_gives_all_but_a_fiftieth_of_what_one_without_end_would(num_rows, order):
    documents = [[group] * 60 for group in range(16)]
    prompts = [[*order.choice(documents), 100 + index, *[3] * 3] for index in range(num_rows)]
    perfect = TightCache(num_blocks=10**9, block_size=2)
    most = sum(perfect.run(prompt) for prompt in prompts)
    window, cache = make_window(block_size=2), TightCache(num_blocks=4 * 32, block_size=2)
    rows = iter(enumerate(prompts))
    num_hits = 0
    # As a run begins: some rows are read between two steps, and a few leave before all are there.
    for _ in range(num_rows):
        batch = [row for row, _ in zip(rows, range(64), strict=False)]
        for index, prompt in batch:
            add(window, index, prompt)
        if len(batch) < 64:
            window.end()
        for _ in range(3):
            if (shared := window.take()) is not None:
                num_hits += cache.run(shared.request().prompt_token_ids)
    assert len(window) == 0
    assert num_hits >= 0.98 * most
