"""JobConfig: what a run was asked to do, checked as far as the flags alone allow, then frozen.

A flag wins over its `INFER_*` environment variable, which wins over the default; typer has settled that before the
values arrive here. What excludes what is settled here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from infer.cli.duration import parse_duration
from infer.cli.error_limit import ErrorLimit, parse_error_limit
from infer.cli.errors import UsageError
from infer.cli.flags import flag
from infer.cli.prompt import PromptSpec
from infer.engine.config import EngineConfig
from infer.engine.sampling_params import SamplingParams
from infer.io.paths import STANDARD_INPUT, input_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    from infer.cli.row_window import Order

SeedBy = Literal["row", "content"]

_MAX_TEMPLATE_BYTES = 1 << 20
_PROMPT_FLAGS = ("prompt_column", "prompt", "prompt_file", "messages_column")
_NOT_REPEATED = (
    "output", "overwrite", "restart", "state_dir", "json", "trace", "max_runtime", "on_error", "max_errors", "help",
)  # fmt: skip
"""What a retry decides anew."""
_EXCLUSIVE = (_PROMPT_FLAGS, ("raw", "system"), ("raw", "messages_column"))
"""Of each group a run has one."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Names are the flags'; None means not asked for."""

    inputs: tuple[str, ...]
    output: str
    seed: int | None = None
    """Every row's draws follow from it and from what `seed_by` says. None: drawn, and kept until all rows are done."""
    seed_by: SeedBy = "row"
    """The row's position, or its prompt: then equal rows draw alike, and their order does not matter."""
    order: Order = "plan"
    """Rows of a common prefix together and equal ones once, or all as they come."""
    overwrite: bool = False
    restart: bool = False
    """Discard what is saved of an earlier run."""
    state_dir: str | None = None
    """Where to keep what is saved; None is beside the output."""
    save_interval: float = 30.0
    """Most seconds that a row which is done waits to be saved."""
    prompt: PromptSpec = field(default_factory=PromptSpec)
    limit: int | None = None
    keep: tuple[str, ...] | None = None
    """Input columns of the output; None keeps all."""
    prefix: str = ""
    row_params: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of SamplingParams that were asked for; the model's own defaults fill the rest."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    trace: str | None = None
    """Where to write what each step decided."""
    allow_errors: bool = False
    """Failed rows do not change the exit code."""
    error_limit: ErrorLimit = field(default_factory=ErrorLimit)
    max_runtime: float | None = None
    """Seconds after which the run stops, to be continued."""
    flags: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What was asked for, to be asked for again by `infer retry`."""


def job_config(flags: Mapping[str, Any], from_environment: Collection[str] = ()) -> JobConfig:
    """The config of a command line, given its values by parameter name, and the names whose values are a variable's.

    Raises:
        UsageError: flags that contradict each other or do not parse.
        ConfigError: an engine setting that cannot work.
    """
    flags = _without_overruled(flags, from_environment)
    inputs = tuple(flags["inputs"])
    if flags["limit"] is not None and flags["limit"] < 1:
        raise UsageError(f"--limit must be at least 1: {flags['limit']}")
    if flags["output"] == "-" and flags["json"]:
        raise UsageError("--json and -o - both print on standard output", "name a file with -o OUT.parquet")
    if flags["output"] == "":
        raise UsageError("-o names no file")
    if not _is_unicode(flags["prefix"]):
        raise UsageError(f"--prefix is no text: {flags['prefix']}")
    return JobConfig(
        inputs=inputs,
        output=flags["output"] or default_output(inputs),
        seed=flags["seed"],
        seed_by=flags["seed_by"],
        order=flags["order"],
        overwrite=flags["overwrite"],
        restart=flags["restart"],
        state_dir=flags["state_dir"],
        save_interval=_save_interval(flags["save_interval"]),
        prompt=_prompt(flags),
        limit=None if flags["limit"] is None else min(flags["limit"], sys.maxsize),
        keep=None if flags["keep"] is None else _parse_names("--keep", flags["keep"]),
        prefix=flags["prefix"],
        row_params=flags["row_params"],
        sampling=_sampling(flags),
        engine=_engine(flags),
        trace=flags["trace"],
        allow_errors=flags["allow_errors"],
        error_limit=parse_error_limit(flags["on_error"], flags["max_errors"]),
        max_runtime=None if flags["max_runtime"] is None else parse_duration(flags["max_runtime"], "--max-runtime"),
        flags=_repeatable(flags, inputs),
    )


def default_output(inputs: Sequence[str]) -> str:
    """Beside the input: `data.parquet` and `data.jsonl.gz` both give `data.infer.parquet`.

    Raises:
        UsageError: not one file, but several, a directory, a glob or standard input.
        InputError: no file matches the glob.
    """
    path = Path(inputs[0])
    if has_magic(inputs[0]):
        # Where nothing matches, that is what is wrong.
        input_files(inputs)
    if len(inputs) > 1 or inputs[0] == "-" or path.is_dir() or (has_magic(inputs[0]) and not path.exists()):
        raise UsageError(f"no output name follows from the input: {' '.join(inputs)}", "name one with -o OUT.parquet")
    if path.suffix in (".gz", ".zst"):
        path = path.with_suffix("")
    return str(path.with_suffix(".infer.parquet"))


def _save_interval(seconds: float) -> float:
    if not seconds >= 0:
        raise UsageError(f"--save-interval must not be negative: {seconds:g}")
    return seconds


def _repeatable(flags: Mapping[str, Any], inputs: Sequence[str]) -> dict[str, Any]:
    """The flags that say what is computed, so that they mean the same in another directory."""
    names = [name for name, value in flags.items() if name not in _NOT_REPEATED and value is not None]
    repeated = {name: flags[name] for name in names}
    repeated["inputs"] = [each if each == STANDARD_INPUT else str(Path(each).absolute()) for each in inputs]
    if flags["prompt_file"] is not None:
        repeated["prompt"] = _read_template(repeated.pop("prompt_file"))
    for name in ("model", "speculative_model", "kv_cache_dir"):
        if flags[name] is not None and Path(flags[name]).exists():
            repeated[name] = str(Path(flags[name]).absolute())
    return repeated


def _without_overruled(flags: Mapping[str, Any], from_environment: Collection[str]) -> dict[str, Any]:
    """A flag wins over the variables of the flags that it excludes, too."""
    overruled = set()
    for group in _EXCLUSIVE:
        given = {name for name in group if flags[name] not in (None, False)}
        if given - set(from_environment):
            overruled |= given & set(from_environment)
    return {name: None if name in overruled else value for name, value in flags.items()}


def _prompt(flags: Mapping[str, Any]) -> PromptSpec:
    given = [flag(name) for name in _PROMPT_FLAGS if flags[name] is not None]
    if len(given) > 1:
        raise UsageError(f"a row has one prompt, given are {len(given)}: {', '.join(given)}", "leave one of them")
    if flags["raw"]:
        for name in ("system", "messages_column"):
            if flags[name] is not None:
                raise UsageError(f"{flag(name)} needs the chat template that --raw leaves out", "drop one of the two")
    return PromptSpec(
        prompt_column=flags["prompt_column"],
        prompt=flags["prompt"] if flags["prompt_file"] is None else _read_template(flags["prompt_file"]),
        messages_column=flags["messages_column"],
        system=flags["system"],
        raw=bool(flags["raw"]),
        special_tokens=flags["special_tokens"],
    )


def _read_template(path: str) -> str:
    try:
        # Not all of it: a device has no end.
        with Path(path).open("rb") as file:
            data = file.read(_MAX_TEMPLATE_BYTES + 1)
        if len(data) > _MAX_TEMPLATE_BYTES:
            raise UsageError(f"--prompt-file is longer than {_MAX_TEMPLATE_BYTES >> 20} MiB: {path}")
        # As an editor shows it: a byte order mark, and the line end at the end of a file, are no part of what is asked.
        return data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
    except OSError as error:
        raise UsageError(f"--prompt-file cannot be read: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt-file is not UTF-8: {path}") from error


def _sampling(flags: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name in (each.name for each in fields(SamplingParams)):
        value = flags[name]
        # Not given. False by identity: a temperature of 0.0 equals it.
        if value is None or value is False or value in ((), []):
            continue
        parse = _SAMPLING_PARSERS.get(name)
        given[name] = value if parse is None else parse(flag(name), value)
    # Values out of range stop the job here, not after the model is loaded.
    SamplingParams(**given)
    return given


def _engine(flags: Mapping[str, Any]) -> EngineConfig:
    names = {each.name for each in fields(EngineConfig)} & flags.keys()
    settings = {name: flags[name] for name in names}
    return EngineConfig(**settings, memory_utilization=flags["gpu_memory_utilization"])


def _is_unicode(text: str) -> bool:
    """Whether it was given in UTF-8: other bytes become lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"{option} takes names separated by commas: {text!r}")
    return names


def _parse_token_ids(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(token_id) for token_id in text.split(","))
    except ValueError as error:
        raise UsageError(f"{option} takes token ids separated by commas: {text!r}") from error


def _parse_strings(_option: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(values)


def _parse_logit_bias(option: str, text: str) -> dict[int, float]:
    try:
        bias = orjson.loads(text)
        return {int(token_id): float(value) for token_id, value in bias.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"""{option} takes a JSON object like {{"50256": -100}}: {text}""") from error


_SAMPLING_PARSERS: dict[str, Callable[[str, Any], object]] = {
    "stop": _parse_strings,
    "bad_words": _parse_strings,
    "stop_token_ids": _parse_token_ids,
    "allowed_token_ids": _parse_token_ids,
    "logit_bias": _parse_logit_bias,
}
