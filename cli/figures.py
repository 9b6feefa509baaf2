"""How figures are written: thousands apart, rates and shares without decimals that only jitter."""

from __future__ import annotations


def count(number: float) -> str:
    return f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`"""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def rate(tokens_per_second: float) -> str:
    return f"{count(tokens_per_second)} tok/s"


def percent(part: float, whole: float) -> str:
    """Rounded down, so that 100% means all of it; 0% of nothing."""
    # To six places first: 0.29 is a little less than 29 hundredths.
    return f"{int(round(100 * part / whole, 6)) if whole else 0}%"
