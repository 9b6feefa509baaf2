"""Verifies an output: that it is whole, what its run has written, and what the run has promised.

A file is hashed first, and where its digest is wrong nothing parses it. Then one pass over its rows, a batch at a time,
beside the rows of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infer.io.errors import InputError
from infer.io.finding import Check, Finding, raise_findings
from infer.io.output_directory import PART, SUCCESS
from infer.io.paths import FileFormat
from infer.io.readable import reading
from infer.io.verification import Verification
from infer.io.verify_jsonl import verify_jsonl
from infer.io.verify_parquet import verify_parquet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infer.io.finding import Findings
    from infer.io.journal import FileRecord
    from infer.io.output_record import OutputRecord
    from infer.io.reader import Source


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """What the state of a run says about its output."""

    record: OutputRecord
    files: tuple[FileRecord, ...]
    """The file, or the parts of a directory in their order."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at, and what is wrong. `findings` is empty where the output is good."""

    path: Path
    num_files: int
    num_rows: int
    checks: tuple[Check, ...]
    """All that there are for such an output, in the order of looking."""
    unchecked: Mapping[Check, str]
    """What could not be looked at, and why."""
    findings: tuple[Finding, ...]

    def check(self) -> None:
        """Returns if nothing was found.

        Raises:
            VerificationError: something was; tells the first of it.
        """
        raise_findings(self.findings)


def verify_output(path: Path, *, source: Source | None = None, expected: ExpectedOutput | None = None) -> VerifyReport:
    """Look at every byte and every row of the output at `path`: a file, or a directory of parts.

    `source` is the input, to compare kept columns with; `expected` what the run has noted. Without `expected`, JSONL
    has no digest. Holds one batch of rows at a time.

    Raises:
        InputError: there is no output of this name, or the input cannot be read.
    """
    verification = Verification(None if expected is None else expected.record, source)
    files = _files(path, verification.findings)
    noted: tuple[FileRecord | None, ...] = (None,) * len(files) if expected is None else expected.files
    if len(noted) != len(files):
        message = f"the run has written {len(noted)} files, found {len(files)}"
        verification.findings.add(Finding(Check.FILES, message, path))
        noted = (*noted[: len(files)], *[None] * (len(files) - len(noted)))
    for file, digest in zip(files, noted, strict=True):
        verify_file(file, digest, verification, _format(file) or FileFormat.JSONL)
    verification.end_rows(path)
    if source is None:
        verification.unchecked[Check.INPUT] = "no input was given"
    checks = [check for check in Check if check is not Check.FILES or path.is_dir()]
    findings = verification.findings.all()
    if verification.is_broken:
        found = {finding.check for finding in findings}
        for check in checks:
            if check not in found and check not in (Check.FILES, Check.DIGEST):
                verification.unchecked.setdefault(check, "the output could not be read to its end")
    return VerifyReport(
        path=path,
        num_files=len(files),
        num_rows=verification.num_rows,
        checks=tuple(checks),
        unchecked=verification.unchecked,
        findings=findings,
    )


def verify_file(file: Path, digest: FileRecord | None, verification: Verification, format_: FileFormat) -> None:
    """Look at one file of an output, whatever its name is: a run reads back with it what it has not yet published.

    What is wrong goes to `verification`, which goes through the files of an output in their order.

    Raises:
        InputError: the file or the input cannot be read.
    """
    with reading(file):
        if digest is not None and file.stat().st_size != digest.num_bytes:
            message = f"{digest.num_bytes} bytes were written, found {file.stat().st_size}"
            verification.fail(Check.DIGEST, message, file)
            return
        verify = verify_parquet if format_ is FileFormat.PARQUET else verify_jsonl
        verify(file, None if digest is None else digest.sha256, verification)


def _files(path: Path, findings: Findings) -> list[Path]:
    """The files of the output in order; what a directory should not have, or lacks, is found."""
    with reading(path):
        if not path.exists():
            raise InputError(f"no such output: {path}")
        if not path.is_dir():
            if not path.is_file():
                raise InputError(f"no regular file: {path}")
            if _format(path) is None:
                raise InputError(f"no output of infer has such a name: {path}", "outputs: .parquet, .jsonl, .ndjson")
            return [path]
        # What readers of data sets pass over is no part of the output: our own state is such a name.
        found = sorted(each for each in path.iterdir() if not each.name.startswith((".", "_")))
        if not (path / SUCCESS).is_file():
            findings.add(Finding(Check.FILES, f"there is no {SUCCESS}: the run has not ended", path))
    parts = [each for each in found if PART.fullmatch(each.name) and _format(each) is not None and each.is_file()]
    if not parts:
        raise InputError(f"no output of infer in directory: {path}", "its files are called part-00000.parquet and on")
    for stranger in sorted(set(found) - set(parts)):
        findings.add(Finding(Check.FILES, "this is no part of the output", stranger))
    for number, part in enumerate(parts):
        expected = f"part-{number:05}{parts[0].suffix}"
        if part.name != expected:
            findings.add(Finding(Check.FILES, f"found instead of {expected}", part))
            break
    return parts


def _format(path: Path) -> FileFormat | None:
    return next((known for known in FileFormat if path.suffix.lower() in known.value), None)
