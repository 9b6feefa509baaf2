"""What a verification finds, counted by kind: a file with a million bad rows is told in one line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from infer.io.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Check(StrEnum):
    """What an output is held to, in the order of looking."""

    FILES = "files"
    """Of a directory: every part once, nothing else, and `_SUCCESS`."""
    DIGEST = "digest"
    """No byte has changed since the output was written."""
    RECORD = "record"
    """It says which run wrote it, and all of its files and the state of the run agree."""
    PAGES = "pages"
    """All of it can be read, and every page matches its checksum; every line is a JSON object."""
    COLUMNS = "columns"
    """The columns that were promised, in their order, with their types."""
    ROWS = "rows"
    """As many as were promised, each once, in order."""
    OUTCOMES = "outcomes"
    """Every row has a result or an error, and not both."""
    INPUT = "input"
    """The kept columns are those of the input."""


HINTS = {
    Check.FILES: "a part is missing, or something that the run has not written was put there",
    Check.DIGEST: "the file was damaged or edited; take a copy, or run again",
    Check.RECORD: "this is not what the run has written",
    Check.PAGES: "the file was damaged before it was whole; run again",
    Check.COLUMNS: "the output was written or changed by something else",
    Check.ROWS: "rows were lost or doubled; run again",
    Check.OUTCOMES: "these rows were not written by a run that went well; run again",
    Check.INPUT: "the input has changed since the run, or the output has",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, with where it was seen first."""

    check: Check
    message: str
    file: Path
    row: int | None = None
    """Position in the whole output, counted from 0."""
    column: str | None = None
    num_rows: int = 1
    """How many rows have it, where it is something that rows have."""

    @property
    def hint(self) -> str:
        return HINTS[self.check]

    def __str__(self) -> str:
        place = str(self.file) + ("" if self.row is None else f": row {self.row}")
        place += "" if self.column is None else f": column {self.column}"
        return f"{place}: {self.message}" + (f" (and {self.num_rows - 1} more)" if self.num_rows > 1 else "")


def raise_findings(findings: Sequence[Finding]) -> None:
    """Returns if there are none.

    Raises:
        VerificationError: there are; tells the first.
    """
    if findings:
        num_more = len(findings) - 1
        more = f" (findings beside this one: {num_more})" if num_more else ""
        raise VerificationError(f"the output is not as it was written: {findings[0]}{more}", findings[0].hint)


class Findings:
    """Collects findings; those of one kind in one file and column are one."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[object, ...], Finding] = {}

    def add(self, finding: Finding, kind: str = "") -> None:
        """`kind`: what findings have in common that differ in the message."""
        key = (finding.check, finding.file, finding.column, kind or finding.message)
        known = self._by_kind.get(key)
        self._by_kind[key] = finding if known is None else replace(known, num_rows=known.num_rows + finding.num_rows)

    def all(self) -> tuple[Finding, ...]:
        """In the order of looking."""
        order = list(Check)
        return tuple(sorted(self._by_kind.values(), key=lambda finding: order.index(finding.check)))
