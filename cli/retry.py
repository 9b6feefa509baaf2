"""`infer retry`: its flags. What happens is in `retry_job.py`."""

from __future__ import annotations

from typing import Annotated

import typer

from infer.cli.find_state import OutputArgument, StateDirOption  # noqa: TC001  typer looks them up


def retry_command(
    output: OutputArgument,
    codes: Annotated[
        str, typer.Option(metavar="A,B", help="the error codes of the rows to run again, or all")
    ] = "oom,timeout",
    state_dir: StateDirOption = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(metavar="N", help="sequences in a step [default: as before]", show_default=False)
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="cpu, cuda [default: as before]", show_default=False)
    ] = None,
    row_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="give a row up after so long [default: as before]", show_default=False),
    ] = None,
    max_runtime: Annotated[
        str | None, typer.Option(metavar="TIME", help="stop after 90, 30m, 1h30m; retry again", show_default=False)
    ] = None,
    allow_errors: Annotated[bool, typer.Option("--allow-errors", help="exit 0 although rows failed")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end")] = False,
) -> None:
    """Run failed rows again, and publish the output anew.

    All other rows stay as they were. The job is taken from what the run has saved; input and model must be the same.
    """
    # Here, because the help page must not wait for what a run needs.
    from infer.cli.retry_job import RetryConfig, parse_codes, retry_job
    from infer.cli.stdout import print_summary

    options = {
        "max_num_seqs": max_num_seqs,
        "device": device,
        "row_timeout": row_timeout,
        "max_runtime": max_runtime,
    }
    changed = {name: value for name, value in options.items() if value is not None}
    config = RetryConfig(output, parse_codes(codes), state_dir, {**changed, "allow_errors": allow_errors})
    summary = retry_job(config)
    if json:
        print_summary(summary.to_json())
    raise typer.Exit(summary.exit_code)
