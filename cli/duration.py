"""How long something may take, as people write it: `90`, `45s`, `30m`, `1h30m`, `2d`."""

from __future__ import annotations

import re

from infer.cli.errors import UsageError

_DURATION = re.compile(
    r"(?:(?P<days>\d{1,9})d)?(?:(?P<hours>\d{1,9})h)?(?:(?P<minutes>\d{1,9})m)?(?:(?P<seconds>\d{1,9})s)?", re.ASCII
)
_MAX_SECONDS = 366 * 86_400


def parse_duration(text: str, name: str) -> float:
    """The seconds of the setting `name`.

    Raises:
        UsageError: no such duration, or none that can be meant.
    """
    plain = text.strip().lower()
    match = _DURATION.fullmatch(f"{plain}s" if plain.isdecimal() else plain)
    if match is None or not plain:
        raise UsageError(f"{name} must be a time: {text!r}", "seconds, or with units in this order: 90, 30m, 1h30m, 2d")
    days, hours, minutes, seconds = (int(part or 0) for part in match.group("days", "hours", "minutes", "seconds"))
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 0 < total <= _MAX_SECONDS:
        raise UsageError(f"{name} must be more than 0 and at most 366 days: {text!r}")
    return float(total)
