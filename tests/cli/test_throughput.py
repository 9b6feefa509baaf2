from __future__ import annotations

from infer.cli.run_snapshot import RunSnapshot
from infer.cli.throughput import Throughput
from infer.engine.stats import EngineStats


def snapshot(
    seconds: float, prompt: int = 0, completion: int = 0, done: int = 0, total: int | None = None
) -> RunSnapshot:
    stats = EngineStats(prompt_tokens_total=prompt, completion_tokens_total=completion)
    return RunSnapshot(done, 0, total, seconds, stats, "model", "in.parquet", "out.parquet")


def test_rates_are_zero_before_time_has_passed() -> None:
    throughput = Throughput(snapshot(0))
    throughput.add(snapshot(0, prompt=100, completion=10))
    assert throughput.prompt_tokens_per_second == 0
    assert throughput.completion_tokens_per_second == 0


def test_rates_are_of_the_window_and_not_of_the_whole_run() -> None:
    throughput = Throughput(snapshot(0), window_seconds=10)
    for second in range(1, 31):
        throughput.add(snapshot(second, prompt=min(second, 15) * 1_000, completion=max(0, second - 15) * 50))
    assert throughput.prompt_tokens_per_second == 0
    assert throughput.completion_tokens_per_second == 50


def test_rates_are_since_the_previous_snapshot_where_those_come_seldom() -> None:
    throughput = Throughput(snapshot(0), window_seconds=10)
    throughput.add(snapshot(60, prompt=6_000))
    throughput.add(snapshot(120, prompt=6_600))
    assert throughput.prompt_tokens_per_second == 10


def test_time_left_is_from_the_mean_of_the_rows_done_since_the_first_snapshot() -> None:
    throughput = Throughput(snapshot(10, done=500, total=1_000))
    assert throughput.seconds_left is None
    throughput.add(snapshot(20, done=600, total=1_000))
    assert throughput.seconds_left == 40
    throughput.add(snapshot(60, done=1_000, total=1_000))
    assert throughput.seconds_left == 0


def test_time_left_is_unknown_without_a_total() -> None:
    throughput = Throughput(snapshot(0))
    throughput.add(snapshot(20, done=600))
    assert throughput.seconds_left is None
