"""`infer bench`: its flags. What is measured is in `bench_job.py`, what it comes to in `bench_result.py`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import typer

from infer.cli.borrowed_flags import with_run_flags
from infer.cli.run import names_from_environment
from infer.cli.stdout import print_summary

_NOT_TAKEN = (
    *("output", "overwrite", "restart", "state_dir", "save_interval", "keep", "prefix"),
    *("trace", "allow_errors", "on_error", "max_errors", "max_runtime"),
)
"""What concerns an output that somebody wants."""

_rows = partial(typer.Option, rich_help_panel="Synthetic rows (without INPUT)", show_envvar=False, show_default=False)
_measuring = partial(typer.Option, rich_help_panel="Measuring", show_envvar=False)


@with_run_flags(without=_NOT_TAKEN)
def bench_command(
    context: typer.Context,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT", rich_help_panel="Input", show_default=False, help="own rows, as `infer run` takes them"
        ),
    ] = None,
    workload: Annotated[
        Literal["label-short", "unique-gen", "long-mixed", "grouped"],
        _rows(metavar="NAME", help="label-short, unique-gen, long-mixed, grouped [default: unique-gen]"),
    ] = "unique-gen",
    num_rows: Annotated[int | None, _rows(metavar="N", help="another number of rows")] = None,
    prompt_tokens: Annotated[str | None, _rows(metavar="A[:B]", help="other lengths of a row's own text")] = None,
    output_tokens: Annotated[str | None, _rows(metavar="A[:B]", help="other lengths of the answers")] = None,
    shared_prefix_tokens: Annotated[int | None, _rows(metavar="N", help="length of what a group shares")] = None,
    groups: Annotated[int | None, _rows(metavar="N", help="how many such prefixes")] = None,
    rounds: Annotated[int, _measuring(metavar="N", help="measured runs, of which the median counts")] = 3,
    warmup_rows: Annotated[int, _measuring(metavar="N", help="rows that are run before, for nothing")] = 8,
    json: Annotated[bool, _measuring("--json", help="print one JSON object", show_default=False)] = False,
    **flags: object,
) -> None:
    """Measure where the time of a run goes, and what is possible here.

    Runs rows as `infer run` does, from the file to the published output, without keeping it; then once more with a
    stopwatch at every kernel. Nothing else should run meanwhile.
    """
    # Here, because the help page must not wait for what a measurement needs.
    from infer.cli.bench_config import bench_config
    from infer.cli.bench_job import run_bench
    from infer.cli.bench_report import print_result, to_json

    result = run_bench(bench_config(context.params, names_from_environment(context)))
    if json:
        print_summary(to_json(result))
    else:
        print_result(result)
    raise typer.Exit(result.exit_code)
