"""`infer verify`: whether an output is whole, and what its run has written."""

from __future__ import annotations

import json as json_format
from pathlib import Path  # noqa: TC003  typer looks it up
from typing import TYPE_CHECKING, Annotated

import typer

from infer.cli.errors import ExitCode
from infer.cli.find_state import StateDirOption  # noqa: TC001  typer looks it up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infer.io.verify import ExpectedOutput, VerifyReport


def verify_command(
    output: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="a .parquet or .jsonl file, or a directory of parts", show_default=False),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="IN", help="what the run has read, to compare the kept columns with"),
    ] = None,
    state_dir: StateDirOption = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Check that an output is whole, and what its run has written.

    No byte changed, every row once and in order, each with a result or an error, the kept columns those of the input.
    What the run has saved beside it is used where it is there: JSONL has its digest only there. Exits with 9 where
    something is wrong.
    """
    # Here, because the help page must not wait for what a verification needs.
    from infer.cli.terminal import safe
    from infer.io.reader import open_source
    from infer.io.verify import verify_output

    source = open_source(inputs) if inputs else None
    report = verify_output(output, source=source, expected=_expected(output, state_dir))
    code = ExitCode.VERIFICATION if report.findings else ExitCode.DONE
    if json:
        typer.echo(json_format.dumps(_to_json(report, code)))
    else:
        for line in _lines(report):
            typer.echo(safe(line))
    raise typer.Exit(code)


def _expected(output: Path, state_dir: str | None) -> ExpectedOutput | None:
    """What the state says, where there is one that can be read: a good output is good without."""
    from infer.cli.resume import state_directory
    from infer.cli.terminal import safe
    from infer.io.aside import resolved
    from infer.io.errors import StateError, StorageError
    from infer.io.expected_output import expected_output

    try:
        return expected_output(state_directory(resolved(output), state_dir))
    except (StateError, StorageError) as error:
        typer.echo(safe(f"what is saved of the run is not used: {error}"), err=True)
        return None


def _lines(report: VerifyReport) -> Iterator[str]:
    from infer.cli.figures import counted

    yield f"{report.path}: {counted(report.num_rows, 'row')} in {counted(report.num_files, 'file')}"
    for check in report.checks:
        findings = [finding for finding in report.findings if finding.check is check]
        for finding in findings:
            yield f"{check:10}failed: {finding}"
        if findings:
            yield f"{'':10}hint: {findings[0].hint}"
        elif check in report.unchecked:
            yield f"{check:10}not checked: {report.unchecked[check]}"
        else:
            yield f"{check:10}ok"


def _to_json(report: VerifyReport, code: int) -> dict[str, object]:
    return {
        "output": str(report.path),
        "files": report.num_files,
        "rows": report.num_rows,
        "ok": not report.findings,
        "checked": [str(check) for check in report.checks if check not in report.unchecked],
        "unchecked": {str(check): reason for check, reason in report.unchecked.items()},
        "findings": [
            {
                "check": str(finding.check),
                "message": finding.message,
                "file": str(finding.file),
                "row": finding.row,
                "column": finding.column,
                "rows": finding.num_rows,
                "hint": finding.hint,
            }
            for finding in report.findings
        ],
        "exit_code": int(code),
    }
