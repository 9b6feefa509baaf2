"""The state of one pass over an output: what its files must agree with, how far it is, and what was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infer.io.errors import InputError
from infer.io.finding import Check, Finding, Findings
from infer.io.input_match import InputMatch
from infer.io.row_rules import broken_rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from infer.io.output_record import OutputColumns, OutputRecord
    from infer.io.reader import Source


@dataclass(slots=True)
class Verification:
    """Handed from file to file of an output, in their order, and ended by `end_rows`."""

    record: OutputRecord | None = None
    """From the state of the run, or else from the first file."""
    source: Source | None = None
    findings: Findings = field(default_factory=Findings)
    unchecked: dict[Check, str] = field(default_factory=dict)
    columns: OutputColumns | None = None
    """Set by the first rows that were read."""
    match: InputMatch | None = None
    num_rows: int = 0
    """Read so far."""
    is_broken: bool = False
    """Whether rows could not be read, so that nobody knows which ones the next are."""

    def begin_rows(self, columns: OutputColumns, file: Path) -> None:
        """Called before the rows of each file. Its first call opens the input beside them."""
        if self.columns is not None:
            return
        self.columns = columns
        if self.source is not None:
            try:
                self.match = InputMatch(self.source, columns.kept)
            except InputError as error:
                self.findings.add(Finding(Check.INPUT, f"the output has kept what the input lacks: {error}", file))

    def add_rows(self, results: Mapping[str, pa.Array], file: Path) -> None:
        """Look at the result columns, by their names without the prefix, of the next rows."""
        for broken in broken_rules(results, self.num_rows):
            row = self.num_rows + broken.offsets[0]
            finding = Finding(broken.check, broken.message, file, row, num_rows=len(broken.offsets))
            self.findings.add(finding, broken.rule)
        self.num_rows += len(next(iter(results.values())))

    def add_differences(self, name: str, offsets: Sequence[int], file: Path) -> None:
        """Note that a kept column is not the input's in rows counted from the next one."""
        row = self.num_rows + offsets[0]
        self.findings.add(Finding(Check.INPUT, "not the value of the input", file, row, name, len(offsets)))

    def end_rows(self, path: Path) -> None:
        """Called after the last file of the output at `path`: there are as many rows as there should be."""
        if self.is_broken:
            # Not all of them were read.
            return
        limit = None
        if self.record is not None:
            limit = self.record.limit
            if self.num_rows != self.record.num_rows:
                message = f"{self.record.num_rows} rows were promised, found {self.num_rows}"
                self.findings.add(Finding(Check.ROWS, message, path))
        if self.source is not None:
            expected = self.source.num_rows if limit is None else min(limit, self.source.num_rows)
            if self.num_rows != expected:
                message = f"the input has {expected} rows, the output {self.num_rows}"
                self.findings.add(Finding(Check.INPUT, message, path))

    def fail(self, check: Check, message: str, file: Path) -> None:
        """Note that no more rows of `file` can be read."""
        self.findings.add(Finding(check, message, file, self.num_rows if check is Check.PAGES else None))
        self.is_broken = True
