"""The order in which prompts are computed: by what they share, and where that is free by what they generate."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer.engine.planner import Goal, common_prefix_lengths, pack_prompt, plan_order, unpack_prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

prompts_of_few_tokens = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=20)


def order(prompts: Sequence[Sequence[int]], outputs: Sequence[int] | int = 1, after: Sequence[int] = (), **settings):
    """Indices as planned; unless told otherwise with blocks of one token, and where equal answers have no say."""
    num_output_tokens = [outputs] * len(prompts) if isinstance(outputs, int) else outputs
    packed = [pack_prompt(each) for each in prompts]
    settings = {"block_size": 1, "goal": Goal.FINISH, "after": [pack_prompt(after)] if after else [], **settings}
    return [each.index for each in plan_order(packed, num_output_tokens, **settings)]


def num_shared(prompts: Sequence[Sequence[int]], block_size: int = 1, after: Sequence[int] = ()) -> list[int]:
    packed = [pack_prompt(each) for each in prompts]
    last = [pack_prompt(after)] if after else []
    plan = plan_order(packed, [1] * len(prompts), block_size=block_size, goal=Goal.FINISH, after=last)
    return [each.num_shared_tokens for each in plan]


def hits_of_a_cache_without_end(prompts: Sequence[Sequence[int]], block_size: int) -> int:
    """Tokens that each prompt finds of those before it: all full blocks, and never its last token."""
    cached: set[tuple[int, ...]] = set()
    num_hits = 0
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        num_hits += sum(block_size for end in ends if end < len(prompt) and tuple(prompt[:end]) in cached)
        cached.update(tuple(prompt[:end]) for end in ends)
    return num_hits


@given(st.lists(st.integers(0, 2**32 - 1)), st.lists(st.integers(0, 2**32 - 1)))
def test_packed_prompts_compare_as_their_tokens_do(one, other):
    assert unpack_prompt(pack_prompt(one)) == tuple(one)
    assert (pack_prompt(one) < pack_prompt(other)) == (one < other)


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_token_that_four_bytes_cannot_hold_is_refused(token_id):
    with pytest.raises(OverflowError):
        pack_prompt([token_id])


@given(prompts_of_few_tokens)
def test_common_prefix_is_that_of_each_with_the_one_before(prompts):
    expected = [
        next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        for one, other in pairwise(prompts)
    ]
    found = common_prefix_lengths([pack_prompt(each) for each in prompts])
    assert found.dtype == np.int64
    assert found.tolist() == [0, *expected][: len(prompts)]


def test_empty_prompts_have_nothing_in_common():
    assert common_prefix_lengths([b"", b"", pack_prompt([1]), b""]).tolist() == [0, 0, 0, 0]


def test_long_prompts_are_compared_in_parts():
    lengths = [300_000, 300_000, 5, 100_000, 100_000, 100_000, 90_000, 700_000]
    prompts = [[7] * length for length in lengths]
    prompts[1][299_000] = prompts[4][3] = 8
    found = common_prefix_lengths([pack_prompt(each) for each in prompts])
    assert found.tolist() == [0, 299_000, 5, 5, 3, 3, 90_000, 90_000]


def test_no_prompts_are_planned_as_none():
    assert order([]) == order([], after=[1, 2]) == []


def test_prompts_of_a_prefix_follow_each_other_and_say_what_they_share():
    prompts = [[1, 1, 1, 2], [4, 4], [1, 1, 3, 3], [4, 5], [1, 1, 1, 5]]
    assert order(prompts) == [0, 4, 2, 1, 3]
    assert num_shared(prompts) == [0, 3, 2, 0, 1]


def test_what_is_shared_counts_in_full_blocks_and_leaves_a_token():
    prompts = [[1, 1, 1, 1, 2], [1, 1, 1, 1], [1, 1, 1, 9]]
    assert order(prompts, block_size=2) == [0, 1, 2]
    assert num_shared(prompts, block_size=2) == [0, 2, 2]
    assert num_shared([[1, 2], [1, 2], [1, 2]], block_size=2) == [0, 0, 0]


def test_equals_keep_their_order():
    assert order([[3], [1], [2]]) == [0, 1, 2]
    assert order([[7, 3], [8, 1], [7, 1], [8, 3], [7, 2]]) == [0, 2, 4, 1, 3]
    assert order([[5, 5]] * 3) == [0, 1, 2]


def test_prompt_that_is_a_prefix_of_others_is_one_of_them():
    assert order([[1, 1, 2], [9], [1, 1], [1, 1, 3]]) == [0, 2, 3, 1]
    assert num_shared([[1, 1, 2], [9], [1, 1], [1, 1, 3]]) == [0, 1, 2, 0]


def test_those_that_generate_much_for_their_prompt_come_first_where_more_follow():
    prompts = [[1, *[2] * 100], [3], [4, *[2] * 100]]
    assert order(prompts, outputs=[1, 200, 100], goal=Goal.FLOW) == [1, 2, 0]
    # A prefix counts once for all who share it.
    together = [[1, *[2] * 100, 1], [3, *[2] * 50], [1, *[2] * 100, 2], [1, *[2] * 100, 3]]
    assert order(together, outputs=10, goal=Goal.FLOW) == [0, 2, 3, 1]
    assert order(together, outputs=[10, 30, 10, 10], goal=Goal.FLOW) == [1, 0, 2, 3]


def test_nearly_as_heavy_ones_stay_in_their_order():
    prompts = [[1, *[2] * 99], [3, *[2] * 89], [4, *[2] * 95]]
    assert order(prompts, outputs=100, goal=Goal.FLOW) == [0, 1, 2]


def test_longest_answers_come_first_at_the_end_and_do_not_part_a_prefix():
    prompts = [[1], [2, 2], [3], [2, 3], [4]]
    assert order(prompts, outputs=[5, 1, 7, 9, 8], goal=Goal.FINISH) == [3, 1, 4, 2, 0]


def test_plan_goes_on_with_what_shares_most_with_the_last_prompt():
    prompts = [[1, 1], [2, 1], [3, 3, 1], [2, 2], [3, 4], [3, 3, 2]]
    assert order(prompts, after=[3, 3, 9]) == [2, 5, 4, 0, 1, 3]
    assert num_shared(prompts, after=[3, 3, 9]) == [2, 2, 1, 0, 0, 1]
    # Whatever else speaks for the others.
    assert order(prompts, outputs=[1000, 1, 1, 1, 1, 1], after=[2, 9])[:2] == [1, 3]
    assert order(prompts, after=[9]) == order(prompts)


def test_plan_goes_on_with_the_latest_prompts_first():
    prompts = [[1, 1], [2, 1], [3, 1], [4, 1], [2, 2], [4, 5, 1], [4, 5, 2]]
    after = [pack_prompt(each) for each in ([2, 9], [4, 5, 9], [8, 8], [3, 9])]
    plan = plan_order([pack_prompt(each) for each in prompts], [1] * 7, block_size=1, goal=Goal.FINISH, after=after)
    assert [each.index for each in plan] == [2, 5, 6, 3, 1, 4, 0]
    assert [each.num_shared_tokens for each in plan] == [1, 2, 2, 1, 1, 1, 0]


@given(prompts_of_few_tokens, st.integers(1, 4), st.sampled_from(Goal), prompts_of_few_tokens)
def test_every_prompt_is_planned_once_and_finds_all_that_any_order_would(prompts, block_size, goal, after):
    outputs, last = [1 + sum(each) for each in prompts], [pack_prompt(each) for each in after]
    plan = plan_order([pack_prompt(each) for each in prompts], outputs, block_size=block_size, goal=goal, after=last)
    assert sorted(each.index for each in plan) == list(range(len(prompts)))

    def hits(order: Sequence[Sequence[int]]) -> int:
        before = hits_of_a_cache_without_end(after, block_size)
        return hits_of_a_cache_without_end([*after, *order], block_size) - before

    num_shared_tokens = sum(each.num_shared_tokens for each in plan)
    assert num_shared_tokens == hits([prompts[each.index] for each in plan])
    # In another order only the block of a last token can be found, where a longer prompt came before.
    assert hits(prompts) - num_shared_tokens <= block_size * sum(len(each) % block_size == 0 for each in prompts)


def test_prompts_that_each_go_on_from_the_one_before_are_planned_without_recursion():
    prompts = [[7] * length for length in range(1, 3000)]
    assert num_shared(prompts) == list(range(2999))
