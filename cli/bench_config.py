"""BenchConfig: what `infer bench` was asked to measure, checked, then frozen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from infer.cli.bench_shapes import SHAPES, Shape, parse_span
from infer.cli.borrowed_flags import run_flag_defaults
from infer.cli.config import JobConfig, job_config
from infer.cli.errors import UsageError
from infer.cli.flags import flag
from infer.io.paths import STANDARD_INPUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

_SHAPE_FLAGS = ("num_rows", "prompt_tokens", "output_tokens", "shared_prefix_tokens", "groups")
_DEFAULT_SEED = 0
"""Every measurement has the same rows and draws, unless another seed is asked for."""


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """A job whose input, where there is a shape, and output are yet to be made."""

    job: JobConfig
    shape: Shape | None
    """None: the rows are the user's own."""
    seed: int
    rounds: int = 3
    warmup_rows: int = 8


def bench_config(flags: Mapping[str, Any], from_environment: Collection[str] = ()) -> BenchConfig:
    """The config of a command line, given its values by parameter name.

    Raises:
        UsageError: flags that contradict each other or do not parse.
        ConfigError: an engine setting that cannot work.
    """
    for name, least in (("rounds", 1), ("warmup_rows", 0)):
        if flags[name] < least:
            raise UsageError(f"{flag(name)} must be at least {least}: {flags[name]}")
    inputs = flags["inputs"] or []
    if STANDARD_INPUT in inputs:
        raise UsageError("rows that are measured are read several times: -", "put them into a file")
    shape = None if inputs else _shape(flags)
    if inputs:
        for name in _SHAPE_FLAGS:
            if flags[name] is not None:
                raise UsageError(f"{flag(name)} is about synthetic rows, but there is INPUT", "leave one of them out")
    seed = _DEFAULT_SEED if flags["seed"] is None else flags["seed"]
    job_flags = run_flag_defaults()
    # Where it goes is settled when there is a place for it.
    job_flags |= {name: value for name, value in flags.items() if name in job_flags}
    job_flags |= {"inputs": inputs or ["synthetic.jsonl"], "output": "bench.parquet", "json": False, "seed": seed}
    if shape is not None:
        job_flags |= {"prompt_column": "prompt", "row_params": True}
        if job_flags["temperature"] is None:
            job_flags["temperature"] = 0.0
    return BenchConfig(job_config(job_flags, from_environment), shape, seed, flags["rounds"], flags["warmup_rows"])


def _shape(flags: Mapping[str, Any]) -> Shape:
    """That of the workload, as far as no flag says otherwise."""
    shape = SHAPES[flags["workload"]]
    for name in ("num_rows", "groups"):
        if flags[name] is not None and flags[name] < 1:
            raise UsageError(f"{flag(name)} must be at least 1: {flags[name]}")
    if flags["num_rows"] is not None:
        shape = replace(shape, num_rows=flags["num_rows"])
    if flags["groups"] is not None:
        shape = replace(shape, num_groups=flags["groups"])
    if flags["prompt_tokens"] is not None:
        shape = replace(shape, prompt_tokens=parse_span("--prompt-tokens", flags["prompt_tokens"]))
    if flags["output_tokens"] is not None:
        shape = replace(shape, output_tokens=parse_span("--output-tokens", flags["output_tokens"]))
    if flags["shared_prefix_tokens"] is not None:
        if flags["shared_prefix_tokens"] < 0:
            raise UsageError(f"--shared-prefix-tokens must not be negative: {flags['shared_prefix_tokens']}")
        shape = replace(shape, shared_prefix_tokens=flags["shared_prefix_tokens"])
    return shape
