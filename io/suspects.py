"""Which rows may have brought down the process: what the journal says of the attempts that died.

attempt  entered 63  segment 0-31           died: rows 32 to 63 were in the engine
attempt  entered 95                         died: rows 32 to 95
attempt  ...                                32 to 63 have been there twice: they run last, and alone
attempt  ...         alone 40               died: once alone
attempt  ...         alone 40               died: twice alone, so 40 is `poison`
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infer.io.journal import (
    AloneRecord,
    AttemptRecord,
    EnteredRecord,
    FinalRecord,
    ReopenRecord,
    StopRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infer.io.journal import JournalRecord
    from infer.io.row_set import RowSet

_MAX_DEATHS = 2


@dataclass(frozen=True, slots=True)
class Suspects:
    """Rows that are not saved and have been there when the process died."""

    num_deaths: int
    """Of the run so far."""
    alone: frozenset[int]
    """To be run one at a time."""
    poison: frozenset[int]
    """Not to be run any more."""


def find_suspects(records: Iterable[JournalRecord], saved: RowSet, host: str, boot_id: str) -> Suspects:
    """Look at the attempts so far, all of which have ended.

    `host` and `boot_id` are this machine's: a machine that went down with its processes is no row's fault.
    """
    deaths: list[_Attempt] = []
    attempt: _Attempt | None = None
    for record in records:
        match record:
            case ReopenRecord():
                # What runs again does so without its past.
                deaths, attempt = [], None
            case AttemptRecord():
                deaths += [attempt] if attempt is not None else []
                is_rebooted = record.host == host and record.boot_id != boot_id
                attempt = None if is_rebooted else _Attempt()
            case StopRecord() | FinalRecord():
                attempt = None
            case EnteredRecord() if attempt is not None:
                attempt.last_row = max(attempt.last_row, record.last_row)
            case AloneRecord() if attempt is not None:
                # To the end of the attempt: whoever runs alone does so after all the others.
                attempt.alone = record.row
    deaths += [attempt] if attempt is not None else []
    marks = sorted((death.last_row for death in deaths if death.alone is None), reverse=True)
    # A mark may lie behind the last row: it is set ahead.
    suspected = range(min(marks[_MAX_DEATHS - 1] + 1, saved.num_rows)) if len(marks) >= _MAX_DEATHS else range(0)
    alone = Counter(death.alone for death in deaths if death.alone is not None and death.alone not in saved)
    poison = frozenset(row for row, num_deaths in alone.items() if num_deaths >= _MAX_DEATHS)
    return Suspects(len(deaths), (frozenset(saved.missing(suspected)) | alone.keys()) - poison, poison)


@dataclass(slots=True)
class _Attempt:
    last_row: int = -1
    alone: int | None = None
