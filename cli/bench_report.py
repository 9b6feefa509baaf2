"""A measurement for people, and as one JSON object."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.text import Text

from infer.cli.bench_result import KERNELS
from infer.cli.figures import count, counted
from infer.cli.terminal import open_console, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infer.cli.bench_result import BenchResult

_WORTH_A_LINE = 0.005
"""Share of the run."""
_MOST_OPERATORS = 8


def print_result(result: BenchResult) -> None:
    """On standard output."""
    console = open_console(sys.stdout)
    for line in result_lines(result):
        console.print(Text(safe(line)), soft_wrap=True)


def result_lines(result: BenchResult) -> Iterator[str]:
    yield f"{result.model}, {result.dtype} on {result.device}, {counted(result.num_threads, 'thread')}; {result.rows}"
    yield ""
    yield from _run_lines(result)
    yield ""
    yield from _phase_lines(result)
    yield ""
    yield from _limit_lines(result)
    yield ""
    yield from _loss_lines(result)


def _run_lines(result: BenchResult) -> Iterator[str]:
    summary, seconds = result.typical.summary, result.seconds
    all_seconds = " ".join(f"{each.seconds:.2f}" for each in result.rounds)
    rates = f"{summary.rows / seconds:,.1f} rows/s, {summary.completion_tokens / seconds:,.0f} tokens/s generated"
    yield f"run        {seconds:.2f} s, the median of {all_seconds}: {rates}"
    computed = f"{count(result.num_computed_tokens)} computed, {count(result.work.num_tokens)} are the least"
    yield (
        f"tokens     {count(summary.prompt_tokens)} of prompts, {count(summary.cached_tokens)} of them from the prefix "
        f"cache; {count(summary.completion_tokens)} generated; {computed}"
    )
    if summary.rows_failed:
        yield f"failed     {counted(summary.rows_failed, 'row')}"


def _phase_lines(result: BenchResult) -> Iterator[str]:
    yield "phase              seconds   share"
    for name, seconds in result.phases().items():
        yield f"{name:<16} {seconds:>9.3f}  {seconds / result.seconds:>6.1%}{_remark(result, name)}"
    yield f"host work, outside kernels: {result.host_share:.1%} of the run"
    cost = result.profile_seconds
    yield f"gemm to sample are from a profiled round, which took {cost:+.2f} s ({cost / result.seconds:+.1%})"
    for key, seconds in sorted(result.kernels.items(), key=lambda item: -item[1])[:_MOST_OPERATORS]:
        yield f"  {key.operator:<28} {seconds:>7.3f}  {key.work if key.phase == 'execute' else key.phase}"


def _remark(result: BenchResult, name: str) -> str:
    if name == "gemm" and result.phases()[name] > 0:
        reached = result.work.gemm_flops / result.phases()[name]
        return f"   {_flops(reached)}, {reached / result.limits.gemm_flops:.0%} of the measured rate"
    if name == "attention" and result.phases()[name] > 0:
        seconds = result.phases()[name]
        return f"   {_flops(result.work.attention_flops / seconds)}, {_bytes(result.work.kv_bytes / seconds)}/s"
    return ""


def _limit_lines(result: BenchResult) -> Iterator[str]:
    limits, work = result.limits, result.work
    yield f"measured   {_flops(limits.gemm_flops)} in {result.dtype}, {_bytes(limits.read_bandwidth)}/s from memory"
    yield (
        f"needed     {work.gemm_flops / 1e12:,.2f} TFLOP in products, {work.attention_flops / 1e12:,.2f} in attention, "
        f"{_bytes(work.kv_bytes)} of keys and values"
    )
    yield f"           reading the keys and values alone takes {result.kv_seconds:.2f} s"
    yield (
        f"limit      {result.limit_seconds:.2f} s at that rate with nothing else to do; the run reaches "
        f"{result.limit_seconds / result.seconds:.0%} of it"
    )


def _loss_lines(result: BenchResult) -> Iterator[str]:
    over = result.seconds - result.limit_seconds
    yield f"where the other {over:.2f} s go"
    for name, seconds in sorted(result.losses().items(), key=lambda item: -abs(item[1])):
        if abs(seconds) >= _WORTH_A_LINE * result.seconds:
            yield f"{seconds:>9.2f} s  {name}"


def to_json(result: BenchResult) -> str:
    summary = result.typical.summary
    return json.dumps(
        {
            "model": result.model,
            "rows": result.rows,
            "device": result.device,
            "dtype": result.dtype,
            "num_threads": result.num_threads,
            "summary": json.loads(summary.to_json()) | {"output": None},
            "rounds_seconds": [round(each.seconds, 4) for each in result.rounds],
            "seconds": round(result.seconds, 4),
            "rows_per_second": summary.rows / result.seconds,
            "completion_tokens_per_second": summary.completion_tokens / result.seconds,
            "phases": result.phases(),
            "kernel_phases": KERNELS,
            "operators": [
                {"phase": key.phase, "work": key.work, "operator": key.operator, "seconds": seconds}
                for key, seconds in sorted(result.kernels.items(), key=lambda item: -item[1])
            ],
            "host_share": result.host_share,
            "profile_seconds": result.profile_seconds,
            "limits": {"gemm_flops": result.limits.gemm_flops, "read_bandwidth": result.limits.read_bandwidth},
            "work": {
                "tokens": result.work.num_tokens,
                "tokens_computed": result.num_computed_tokens,
                "logits": result.work.num_logits,
                "gemm_flops": result.work.gemm_flops,
                "attention_flops": result.work.attention_flops,
                "kv_bytes": result.work.kv_bytes,
            },
            "limit_seconds": result.limit_seconds,
            "limit_share": result.limit_seconds / result.seconds,
            "kv_seconds": result.kv_seconds,
            "losses": result.losses(),
            "exit_code": result.exit_code,
        }
    )


def _flops(per_second: float) -> str:
    return f"{per_second / 1e12:,.0f} TFLOP/s" if per_second >= 1e13 else f"{per_second / 1e9:,.0f} GFLOP/s"


def _bytes(number: float) -> str:
    return f"{number / 1e12:,.2f} TB" if number >= 1e12 else f"{number / 1e9:,.1f} GB"
