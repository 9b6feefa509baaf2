"""The rules for rows, on columns as both formats hand them over."""

from __future__ import annotations

import pyarrow as pa
import pytest

from infer.io.finding import Check
from infer.io.row_rules import broken_rules


def columns(**answers: pa.Array) -> dict[str, pa.Array]:
    """Three good rows, the last of them failed, with other answers or columns."""
    return {
        **answers,
        "finish_reason": pa.array(["stop", "length", "error"]),
        "error_code": pa.array([None, None, "oom"]),
        "error": pa.array([None, None, "no room"]),
        "_row": pa.array([5, 6, 7], pa.int64()),
    }


def broken(results: dict[str, pa.Array], first_row: int = 5) -> list[tuple[str, list[int]]]:
    return [(rule.rule, rule.offsets) for rule in broken_rules(results, first_row)]


@pytest.mark.parametrize(
    "answers",
    [
        {"response": pa.array(["a", "", None])},
        {"responses": pa.array([["a"], ["a", "b"], None])},
        {"label": pa.array(["a", "b", None]), "label_prob": pa.array([0.5, None, None])},
        {},
    ],
)
def test_good_rows_break_no_rule(answers: dict[str, pa.Array]) -> None:
    assert broken(columns(**answers)) == []


def test_number_is_the_place_in_the_whole_output() -> None:
    (rule,) = broken_rules(columns(), 6)
    assert (rule.check, rule.offsets, rule.message) == (Check.ROWS, [0, 1, 2], "_row is 5, expected 6")


def test_first_answer_is_there_wherever_one_is_and_none_beside_an_error() -> None:
    answers = columns(label=pa.array([None, "b", None]), label_prob=pa.array([0.5, None, 0.1]))
    assert broken(answers) == [("both label_prob", [2]), ("neither", [0])]


def test_list_of_answers_has_some_and_no_gap() -> None:
    answers = pa.array([["x"], [], ["a", None], ["a"], None, [None]])
    rows = {
        "responses": answers[1:4],
        "finish_reason": pa.array(["stop"] * 3),
        "error_code": pa.nulls(3, pa.string()),
        "error": pa.nulls(3, pa.string()),
        "_row": pa.array([0, 1, 2], pa.int64()),
    }
    # Also where the column is a slice of a longer one.
    assert broken(rows, 0) == [("neither", [0, 1])]
    assert broken(rows | {"responses": answers[3:]}, 0) == [("neither", [1, 2])]
