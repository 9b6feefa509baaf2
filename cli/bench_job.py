"""run_bench(): the same job again and again with one loaded model, then once more with its kernels profiled.

make rows -> load -> warm up -> rounds -> the profiled round -> the machine's limits -> what the rows needed
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol, cast

import orjson
import pyarrow.parquet as pq
import torch
from rich.text import Text

from infer.cli.bench_result import BenchResult, Round
from infer.cli.bench_shapes import make_rows
from infer.cli.errors import CommandError
from infer.cli.job import run_job
from infer.cli.job_engine import JobEngine, identify_model, load_engine
from infer.cli.job_plan import plan_job
from infer.cli.prompt import PromptBuilder
from infer.cli.synthetic_text import token_counter
from infer.cli.terminal import open_console, safe
from infer.engine.errors import PromptError
from infer.engine.limits import measure_limits
from infer.engine.model_dtype import dtype_name
from infer.engine.model_flops import count_model_flops
from infer.engine.required_work import required_work, row_lengths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from infer.cli.bench_config import BenchConfig
    from infer.cli.config import JobConfig
    from infer.cli.job_context import Identify, Load
    from infer.engine.kernel_profile import KernelProfile
    from infer.engine.network import Network
    from infer.engine.required_work import RequiredWork


class BenchEngine(JobEngine, Protocol):
    """What a measurement needs of `infer.engine.engine.Engine`."""

    @property
    def network(self) -> Network: ...

    def forget_cache(self) -> None: ...

    def profile_kernels(self) -> AbstractContextManager[KernelProfile]: ...


class BenchStoppedError(CommandError):
    """A round did not come to its end."""


@dataclass(frozen=True, slots=True)
class _Bench:
    """One model, one input, one place for outputs."""

    job: JobConfig
    engine: BenchEngine
    identity: Mapping[str, object]
    say: Callable[[str], None]

    def run(self, name: str, *, limit: int | None = None) -> Round:
        """One run, from an empty cache."""
        self.engine.forget_cache()
        output = str(Path(self.job.output).with_name(f"{name}.parquet"))
        job = replace(self.job, output=output, limit=limit or self.job.limit)
        with redirect_stderr(io.StringIO()) as said:
            summary = run_job(job, lambda *_: self.engine, lambda *_: self.identity)
        if summary.output is None:
            raise BenchStoppedError(f"the run of {name} has stopped: {said.getvalue().strip().splitlines()[-1]}")
        self.say(f"{name}: {summary.seconds.run:,.2f} s")
        return Round(summary, output)


def run_bench(config: BenchConfig, load: Load = load_engine, identify: Identify = identify_model) -> BenchResult:
    """Measure the job. Talks on standard error.

    Raises:
        UsageError, InputError, ConfigError, ModelError, StorageError: as `run_job`.
        BenchStoppedError: a signal has ended a round.
    """
    console = open_console(sys.stderr)

    def say(line: str) -> None:
        console.print(Text(safe(line)), soft_wrap=True)

    if config.shape is None:
        # What cannot work is said before the model is loaded.
        plan_job(config.job)
    identity = identify(config.job.engine, say)
    engine = cast("BenchEngine", load(config.job.engine, say))
    network = engine.network
    for line in engine.describe():
        say(line)
    with TemporaryDirectory(prefix="infer-bench-") as directory:
        job = replace(config.job, output=str(Path(directory, "out.parquet")))
        if config.shape is not None:
            job = replace(job, inputs=(str(_write_rows(config, engine, directory)),))
            say(f"synthetic rows: {config.shape}")
        bench = _Bench(job, engine, identity, say)
        limits = measure_limits(network.device, network.loaded.dtype)
        if config.warmup_rows:
            bench.run("warm-up", limit=min(config.warmup_rows, job.limit or config.warmup_rows))
        rounds = [bench.run(f"round-{number}") for number in range(1, config.rounds + 1)]
        with engine.profile_kernels() as profile:
            profiled = bench.run("profiled")
        typical = sorted(rounds, key=lambda each: each.seconds)[(len(rounds) - 1) // 2]
        work = _required_work(job, typical, engine)
        engine.forget_cache()
    return BenchResult(
        model=engine.model_name,
        rows=str(config.shape) if config.shape is not None else " ".join(config.job.inputs),
        device=str(network.device),
        dtype=dtype_name(network.loaded.dtype),
        num_threads=torch.get_num_threads(),
        rounds=tuple(rounds),
        typical=typical,
        profiled=profiled,
        kernels=dict(profile.seconds),
        # Before and after: clocks and neighbours change, and a limit is what was possible at any time.
        limits=limits.best_of(measure_limits(network.device, network.loaded.dtype)),
        work=work,
    )


def _write_rows(config: BenchConfig, engine: BenchEngine, directory: str) -> Path:
    """The synthetic rows, as a file to be read as any other."""
    assert config.shape is not None
    path = Path(directory, "synthetic.jsonl")
    with path.open("wb") as file:
        for row in make_rows(config.shape, token_counter(engine.tokenizer), config.seed):
            file.write(orjson.dumps(row) + b"\n")
    return path


def _required_work(job: JobConfig, done: Round, engine: BenchEngine) -> RequiredWork:
    """Of the rows that were answered."""
    plan = plan_job(replace(job, overwrite=True))
    answers = pq.read_table(done.output, columns=["completion_tokens"]).column(0).to_pylist()
    builder = PromptBuilder(plan.prompt, engine.tokenizer)
    prompts, lengths = [], []
    rows = [row for row in plan.source.rows(plan.columns) if row.error is None and answers[row.index]]
    for row, prompt in zip(rows, builder.build_many(rows), strict=True):
        if not isinstance(prompt, PromptError):
            prompts.append(prompt)
            lengths.append(answers[row.index])
    network = engine.network
    kv_bytes_per_token = network.cache_spec.num_bytes_per_block / network.cache_spec.block_size
    return required_work(row_lengths(prompts, lengths), count_model_flops(network.config), kv_bytes_per_token)
