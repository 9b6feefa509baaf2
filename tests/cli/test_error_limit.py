"""How many rows may fail, as it is asked for by two flags."""

from __future__ import annotations

import pytest

from infer.cli.error_limit import ErrorLimit, parse_error_limit
from infer.cli.errors import UsageError


@pytest.mark.parametrize(
    ("on_error", "max_errors", "num_rows", "most", "flag"),
    [
        ("record", None, 100, None, None),
        ("fail", None, 100, 0, "--on-error fail"),
        ("record", "0", 100, 0, "--max-errors 0"),
        ("record", "10", 5, 10, "--max-errors 10"),
        ("record", " 10 ", 100, 10, "--max-errors 10"),
        ("record", "0%", 100, 0, "--max-errors 0%"),
        ("record", "1%", 100, 1, "--max-errors 1%"),
        ("record", "1%", 99, 0, "--max-errors 1%"),
        ("record", "0.5%", 1000, 5, "--max-errors 0.5%"),
        ("record", "0.000001%", 10**8, 1, "--max-errors 0.000001%"),
        ("record", "100%", 7, 7, "--max-errors 100%"),
        ("record", "100.0%", 7, 7, "--max-errors 100.0%"),
    ],
)
def test_limit_is_a_number_of_rows(
    on_error: str, max_errors: str | None, num_rows: int, most: int | None, flag: str | None
) -> None:
    limit = parse_error_limit(on_error, max_errors)
    assert limit.most(num_rows) == most
    if flag is not None:
        assert limit.flag == flag


@pytest.mark.parametrize("percent", range(101))
def test_percentage_of_a_hundred_rows_is_that_many(percent: int) -> None:
    # 0.29 * 100 is a little less than 29.
    assert parse_error_limit("record", f"{percent}%").most(100) == percent


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "101%", "100.1%", "%", "1 %", "1e3", "NaN%", "٣", "9" * 16])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_error_limit("record", text)
    assert str(caught.value) == f"--max-errors takes a number of rows, or a percentage such as 1%: {text}"


def test_two_limits_contradict_each_other() -> None:
    with pytest.raises(UsageError, match=r"^--on-error fail allows no error at all$") as caught:
        parse_error_limit("fail", "10")
    assert caught.value.hint == "leave out one of --on-error and --max-errors"


def test_no_limit_is_none() -> None:
    assert ErrorLimit().most(10**9) is None
