"""A job that passed all checks that need no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infer.cli.errors import UsageError
from infer.cli.result import ResultColumns, result_schema
from infer.cli.row_params import PRIORITY, RowParams
from infer.cli.trace import TRACE_SCHEMA
from infer.io.errors import InputError
from infer.io.output import open_output
from infer.io.reader import open_source
from infer.io.schema import output_schema
from infer.io.table_file import TableFile

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from infer.cli.config import JobConfig
    from infer.cli.prompt import PromptSpec
    from infer.io.output import Output
    from infer.io.reader import Source
    from infer.io.schema import OutputSchema

STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What is read, asked and written."""

    source: Source
    prompt: PromptSpec
    row_params: RowParams | None
    has_priority: bool
    result_columns: ResultColumns
    schema: OutputSchema
    output: Output | None
    """None is standard output."""
    trace: TableFile | None
    columns: tuple[str, ...]
    """What is read of the input: what is kept, and what the requests are made from."""


def plan_job(config: JobConfig) -> JobPlan:
    """Open the input and check the job against its columns.

    Raises:
        UsageError, InputError, OutputNameError, OutputExistsError: the job cannot work.
    """
    output = None if config.output == STANDARD_OUTPUT else open_output(config.output)
    source = open_source(config.inputs, limit=config.limit)
    if not source.schema.names:
        raise InputError(
            f"the input has no columns: {' '.join(config.inputs)}", "it is empty, or its rows have no fields"
        )
    if output is not None:
        output.check_inputs(config.inputs)
    prompt = config.prompt.resolve(source.schema)
    row_params = RowParams(source.schema.names) if config.row_params else None
    param_columns = () if row_params is None else row_params.columns
    has_priority = config.engine.scheduling_policy == "priority"
    if has_priority and PRIORITY not in source.schema.names:
        raise UsageError(f"--scheduling-policy priority needs a column of this name: {PRIORITY}")
    result_columns = _result_columns(config.sampling, param_columns)
    schema = output_schema(source.schema, config.keep, result_schema(result_columns), config.prefix)
    columns = tuple(dict.fromkeys([*schema.kept.names, *prompt.columns, *param_columns, *[PRIORITY] * has_priority]))
    # Much of what makes a file unusable shows at its first row.
    next(source.rows(columns), None)
    return JobPlan(
        source=source,
        prompt=prompt,
        row_params=row_params,
        has_priority=has_priority,
        result_columns=result_columns,
        schema=schema,
        output=output,
        trace=None if config.trace is None else _trace_file(config, config.trace),
        columns=columns,
    )


def _result_columns(sampling: Mapping[str, object], param_columns: Collection[str]) -> ResultColumns:
    """They are fixed before row 0: what rows can ask for by a column counts as asked for."""
    return ResultColumns(
        logprobs="logprobs" in sampling or "logprobs" in param_columns,
        several=sampling.get("n", 1) != 1 or "n" in param_columns,
        scores=any(name in sampling or name in param_columns for name in ("best_of", "beam_width")),
    )


def _trace_file(config: JobConfig, path: str) -> TableFile:
    if Path(path).resolve() == Path(config.output).resolve():
        raise UsageError(f"--trace and the output have one name: {path}")
    return TableFile(path, TRACE_SCHEMA, inputs=config.inputs, overwrite=config.overwrite)
