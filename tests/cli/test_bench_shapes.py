from __future__ import annotations

from collections import Counter

import pytest

from infer.cli.bench_shapes import SHAPES, Shape, Span, make_rows, parse_span
from infer.cli.errors import UsageError


def count_words(text: str) -> int:
    return len(text.split())


def test_span_is_a_number_or_two():
    assert parse_span("--x", "7") == Span(7, 7)
    assert parse_span("--x", "5:9") == Span(5, 9)


@pytest.mark.parametrize("text", ["", "a", "1:b", "9:5", "0", "-1:4", "1:2:3"])
def test_span_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="--x"):
        parse_span("--x", text)


@pytest.mark.parametrize("name", SHAPES)
def test_rows_have_the_lengths_of_their_shape(name):
    shape = SHAPES[name]
    rows = list(make_rows(shape, count_words, seed=0))
    own = [count_words(str(row["prompt"])) - shape.shared_prefix_tokens for row in rows]
    assert len(rows) == len({row["prompt"] for row in rows}) == shape.num_rows
    assert (shape.prompt_tokens.low <= min(own), max(own) <= shape.prompt_tokens.high) == (True, True)
    assert {row["max_tokens"] for row in rows} <= {*range(shape.output_tokens.low, shape.output_tokens.high + 1)}
    assert {row["ignore_eos"] for row in rows} == {True}


def test_rows_of_a_group_share_their_prefix_and_groups_are_mixed():
    shape = Shape(12, Span(3, 5), Span(2, 2), shared_prefix_tokens=20, num_groups=3)
    rows = list(make_rows(shape, count_words, seed=0))
    prefixes = {(row["group"], str(row["prompt"]).split("\n\n")[0]) for row in rows}
    assert len(prefixes) == 3
    assert set(Counter(row["group"] for row in rows).values()) == {4}
    assert [row["group"] for row in rows] != sorted(row["group"] for row in rows)


def test_same_seed_gives_the_same_rows():
    shape = Shape(5, Span(3, 9), Span(2, 8))
    assert list(make_rows(shape, count_words, 1)) == list(make_rows(shape, count_words, 1))
    assert list(make_rows(shape, count_words, 1)) != list(make_rows(shape, count_words, 2))


def test_shape_says_what_it_is():
    assert str(SHAPES["grouped"]) == "256 rows, tokens: 600 shared by each of 16 groups, 15:40 of their own, 16 out"
    assert str(Shape(1000, Span(5, 5), Span(1, 2))) == "1,000 rows, tokens: 5 of their own, 1:2 out"
