"""How long something may take, as people write it."""

from __future__ import annotations

import pytest

from infer.cli.duration import parse_duration
from infer.cli.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("45s", 45),
        ("30m", 1_800),
        ("2h", 7_200),
        ("1h30m", 5_400),
        ("1d2h3m4s", 93_784),
        (" 1H30M ", 5_400),
        ("90m", 5_400),
        ("366d", 31_622_400),
    ],
)
def test_duration_is_seconds_or_has_units(text, seconds):
    assert parse_duration(text, "--max-runtime") == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "h", "1.5h", "-5", "+5", "1h30", "30m1h", "1h1h", "1 h", "5 minutes", "٣m", "1e3"]
)
def test_what_is_no_duration_is_refused_with_examples(text):
    with pytest.raises(UsageError) as caught:
        parse_duration(text, "--max-runtime")
    assert str(caught.value) == f"--max-runtime must be a time: {text!r}"
    assert caught.value.hint == "seconds, or with units in this order: 90, 30m, 1h30m, 2d"


@pytest.mark.parametrize("text", ["0", "0h0m", "367d", "999999999d"])
def test_duration_out_of_range_is_refused(text):
    with pytest.raises(UsageError, match=r"^--max-runtime must be more than 0 and at most 366 days: "):
        parse_duration(text, "--max-runtime")
