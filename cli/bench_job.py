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
from infer.cli.errors import ExitCode, InterruptError, StoppedEarlyError
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


@dataclass(frozen=True, slots=True)
class Rounds:
    """Runs of one job, with one model, in one place for outputs."""

    job: JobConfig
    engine: BenchEngine
    identity: Mapping[str, object]
    say: Callable[[str], None]

    def run(self, name: str, *, limit: int | None = None) -> Round:
        """One run, from an empty cache.

        Raises:
            InterruptError, StoppedEarlyError: a signal has ended it.
        """
        self.engine.forget_cache()
        output = str(Path(self.job.output).with_name(f"{name}.parquet"))
        job = replace(self.job, output=output, limit=limit or self.job.limit)
        with redirect_stderr(io.StringIO()):
            summary = run_job(job, lambda *_: self.engine, lambda *_: self.identity)
        if summary.output is None:
            is_interrupt = summary.exit_code == ExitCode.INTERRUPTED
            error_class = InterruptError if is_interrupt else StoppedEarlyError
            raise error_class(f"{name} was stopped", "what is measured is not kept: run the same command again")
        self.say(f"{name}: {summary.seconds.run:,.2f} s")
        return Round(summary, output)


def run_bench(config: BenchConfig, load: Load = load_engine, identify: Identify = identify_model) -> BenchResult:
    """Measure the job. Talks on standard error.

    Raises:
        UsageError, InputError, ConfigError, ModelError, StorageError: as `run_job`.
        InterruptError, StoppedEarlyError: a signal has ended a round.
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
        bench = Rounds(job, engine, identity, say)
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
    prompts: list[list[int]] = []
    lengths: list[int] = []
    rows = [row for row in plan.source.rows(plan.columns) if row.error is None and answers[row.index]]
    # Several answers to a row share its prompt.
    num_answers = job.sampling.get("n", 1)
    for row, prompt in zip(rows, builder.build_many(rows), strict=True):
        if not isinstance(prompt, PromptError):
            prompts += [prompt] * num_answers
            lengths += [answers[row.index] // num_answers] * num_answers
    network = engine.network
    kv_bytes_per_token = network.cache_spec.num_bytes_per_block / network.cache_spec.block_size
    return required_work(row_lengths(prompts, lengths), count_model_flops(network.config), kv_bytes_per_token)
