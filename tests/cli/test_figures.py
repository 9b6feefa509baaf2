from __future__ import annotations

import pytest

from infer.cli.figures import count, percent, rate


def test_figures_set_thousands_apart_and_round() -> None:
    assert [count(0), count(1_234_567), rate(812.6)] == ["0", "1,234,567", "813 tok/s"]


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "0%"), (0.635, 1, "63%"), (0.29, 1, "29%"), (999, 1_000, "99%"), (1_000, 1_000, "100%")],
)
def test_percent_is_a_hundred_only_when_all_is_done(part: float, whole: float, text: str) -> None:
    assert percent(part, whole) == text
