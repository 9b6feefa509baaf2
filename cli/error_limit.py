"""How many rows may fail before a run gives up: --on-error, --max-errors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from infer.cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """Most rows that may fail: so many, or a share of all; both None is any number."""

    max_rows: int | None = None
    max_share: Fraction | None = None
    flag: str = ""
    """What it was asked for by."""

    def most(self, num_rows: int) -> int | None:
        """Of so many rows; None is any number."""
        if self.max_share is not None:
            return math.floor(self.max_share * num_rows)
        return self.max_rows


def parse_error_limit(on_error: str, max_errors: str | None) -> ErrorLimit:
    """What the two flags come to; `10` is rows, `1%` a share of them.

    Raises:
        UsageError: neither a number nor a percentage, or both flags.
    """
    if max_errors is None:
        return ErrorLimit(max_rows=0, flag="--on-error fail") if on_error == "fail" else ErrorLimit()
    if on_error == "fail":
        raise UsageError("--on-error fail allows no error at all", "leave out one of --on-error and --max-errors")
    text = max_errors.strip()
    match = re.fullmatch(r"(\d{1,15})|(\d{1,3}(?:\.\d{1,6})?)%", text, re.ASCII)
    if match is None or (match[2] and Fraction(match[2]) > 100):
        raise UsageError(f"--max-errors takes a number of rows, or a percentage such as 1%: {max_errors}")
    flag = f"--max-errors {text}"
    if match[1]:
        return ErrorLimit(max_rows=int(match[1]), flag=flag)
    # Exactly: 0.29 * 100 is less than 29.
    return ErrorLimit(max_share=Fraction(match[2]) / 100, flag=flag)
