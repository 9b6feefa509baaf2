from __future__ import annotations

from infer.cli.run_snapshot import RunSnapshot
from infer.cli.throughput import Throughput
from infer.engine.stats import EngineStats


def snapshot(
    seconds: float,
    prompt: int = 0,
    completion: int = 0,
    done: int = 0,
    total: int | None = None,
    completion_done: int = 0,
) -> RunSnapshot:
    stats = EngineStats(prompt_tokens_total=prompt, completion_tokens_total=completion)
    return RunSnapshot(done, 0, total, seconds, stats, "model", "in.parquet", "out.parquet", completion_done)


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


def test_time_left_counts_what_is_generated_of_rows_that_are_not_done() -> None:
    throughput = Throughput(snapshot(0, total=100))
    # A row is done after 50 tokens, and 99 others have 49 of them: they will not take another 99 times as long.
    throughput.add(snapshot(10, completion=50 + 99 * 49, done=1, total=100, completion_done=50))
    assert throughput.seconds_left is not None
    assert 0.1 < throughput.seconds_left < 0.3


def test_time_left_of_rows_longer_than_those_done_is_not_negative() -> None:
    throughput = Throughput(snapshot(0, total=3))
    throughput.add(snapshot(10, completion=500, done=1, total=3, completion_done=10))
    assert throughput.seconds_left == 0


def test_time_left_is_unknown_without_a_total() -> None:
    throughput = Throughput(snapshot(0))
    throughput.add(snapshot(20, done=600))
    assert throughput.seconds_left is None
