"""`infer doctor`: what this machine has for a run, and what is missing."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer

from infer.cli.errors import ExitCode


def doctor_command(json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False) -> None:
    """Show what this machine has for a run, and what is missing.

    A line a finding; a note costs speed or room, and its hint says what to do. Exits with 8 where no model can be run
    at all.
    """
    # Here, because the help page must not wait for what a look needs.
    from infer.cli.terminal import safe
    from infer.engine.doctor import examine
    from infer.engine.finding import State

    findings = []
    for finding in examine():
        findings.append(finding)
        if not json:
            typer.echo(safe(f"{finding.state:<6} {finding.subject:<16} {finding.text}"))
            if finding.hint:
                typer.echo(safe(f"{'':<24}hint: {finding.hint}"))
    is_broken = any(finding.state is State.BROKEN for finding in findings)
    code = ExitCode.MODEL if is_broken else ExitCode.DONE
    if json:
        rows = [
            {"subject": each.subject, "state": each.state, "text": each.text, "hint": each.hint}
            | {"figures": dict(each.figures)}
            for each in findings
        ]
        typer.echo(json_format.dumps({"findings": rows, "exit_code": code}))
    raise typer.Exit(code)
