"""The table of a comparison: medians of the rounds."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from contenders import TimedResult


def table_lines(
    workload: str, results: Mapping[str, Sequence[TimedResult]], peers: Collection[str], limit_seconds: float
) -> Iterator[str]:
    """`results` by contender; `limit_seconds` is the least that the rows can take on this machine. Ours are compared
    with the best of the `peers`, or without any with the first of ours."""
    seconds = {name: median(each.run_seconds for each in runs) for name, runs in results.items()}
    best = min((seconds[name] for name in seconds if name in peers), default=next(iter(seconds.values())))
    beside = "x best peer" if peers else "x first"
    yield f"{workload:<24} {'seconds':>9} {'rows/s':>9} {'tokens/s':>9} {'of limit':>9} {beside:>11} {'other cpu':>10}"
    for name, runs in results.items():
        ratio = "" if name in peers else f"{best / seconds[name]:.2f}"
        tokens = median(each.completion_tokens / each.run_seconds for each in runs)
        others = max(each.other_cpu_seconds for each in runs)
        yield (
            f"  {name:<22} {seconds[name]:>9.2f} {runs[0].rows / seconds[name]:>9.2f} {tokens:>9,.0f} "
            f"{limit_seconds / seconds[name]:>9.0%} {ratio:>11} {others:>9.1f}s"
        )
