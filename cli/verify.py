"""`infer verify`: whether an output is whole, and what its run has written."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infer.cli.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infer.io.verify import VerifyReport


def verify_command(
    output: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="a .parquet or .jsonl file, or a directory of parts", show_default=False),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="IN", help="what the run has read, to compare the kept columns with"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Check that an output is whole, and what its run has written.

    No byte changed, every row once and in order, each with a result or an error, the kept columns those of the input.
    Exits with 9 where something is wrong.
    """
    # Here, because the help page must not wait for what a verification needs.
    from infer.cli.terminal import safe
    from infer.io.reader import open_source
    from infer.io.verify import verify_output

    report = verify_output(Path(output), source=open_source(inputs) if inputs else None)
    code = ExitCode.VERIFICATION if report.findings else ExitCode.DONE
    if json:
        typer.echo(json_format.dumps(_to_json(report, code)))
    else:
        for line in _lines(report):
            typer.echo(safe(line))
    raise typer.Exit(code)


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
