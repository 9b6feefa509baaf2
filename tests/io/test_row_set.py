"""A set of rows behaves as a set of numbers does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer.io.row_set import RowSet


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1)))))
def test_row_set_is_a_set(case: tuple[int, list[int]]) -> None:
    num_rows, added = case
    rows, expected = RowSet(num_rows), set[int]()
    for row in added:
        assert rows.add(row) == (row not in expected)
        expected.add(row)
        assert len(rows) == len(expected)
    assert list(rows) == sorted(expected)
    assert [row in rows for row in range(num_rows)] == [row in expected for row in range(num_rows)]
    assert list(rows.missing(range(num_rows))) == [row for row in range(num_rows) if row not in expected]


@pytest.mark.parametrize("row", [-1, 10, 15, 16])
def test_row_set_has_no_rows_beyond_its_own(row: int) -> None:
    rows = RowSet(10)
    for each in range(10):
        rows.add(each)
    assert row not in rows
    with pytest.raises(IndexError):
        rows.add(row)
    assert len(rows) == 10


def test_row_set_of_no_rows_is_empty() -> None:
    assert (len(RowSet(0)), list(RowSet(0)), 0 in RowSet(0)) == (0, [], False)


def test_row_set_is_asked_for_numbers_only() -> None:
    with pytest.raises(AssertionError, match="x"):
        "x" in RowSet(1)  # noqa: B015
