"""Runs the scheduler without a model over made-up requests: work done twice, predicted time, cost of scheduling.

    python benchmarks/scheduler.py
    python benchmarks/scheduler.py --bus-bandwidth 30e6
    python benchmarks/scheduler.py --requests 1000000 --blocks 9000 --prompt-tokens 60 --output-tokens 8 --max-tokens 32

The first two are a cache about four times too small; in the second, copying to the host costs more than computing. Each
runs with admission control, without, with another victim, and with swapping: always, or where it costs less.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from infer.engine.config import EngineConfig
from infer.engine.cost_model import CostModel
from infer.engine.simulate import SimulatedRequest, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

# SmolLM2-135M in bfloat16 on two cores: 400 GFLOP/s, 32 GB/s.
COSTS = CostModel(
    num_parameters=135_000_000,
    bytes_per_parameter=2,
    bytes_per_cached_token=23_040,
    flops=400e9,
    bandwidth=32e9,
    bus_bandwidth=8e9,
    seconds_per_step=0.004,
)
_UNFORESEEN = {"enable_admission_control": False, "swap_space": 4.0}
SETTINGS = {
    "default": {},
    "no admission control": _UNFORESEEN | {"preemption_mode": "recompute"},
    "same, least waste": _UNFORESEEN | {"preemption_mode": "recompute", "preemption_victim": "least-waste"},
    "same, swap": _UNFORESEEN | {"preemption_mode": "swap"},
    "same, auto": _UNFORESEEN,
}


def main() -> None:
    options = parse_arguments()
    columns = (("wasted", 7), ("preemptions", 12), ("swaps", 7), ("predicted s", 12), ("steps", 8), ("real s", 8))
    print(" " * 22, *(f"{name:>{width}}" for name, width in columns), f"{'us/token':>9}")
    for name in options.settings.split(";"):
        config = EngineConfig(max_num_seqs=options.max_num_seqs, **SETTINGS[name])
        begin = time.perf_counter()
        costs = replace(COSTS, bus_bandwidth=options.bus_bandwidth)
        result = simulate(make_requests(options), config, options.blocks, costs, max_num_waiting=options.waiting)
        seconds = time.perf_counter() - begin
        print(
            f"{name:22} {result.share_wasted:7.1%} {result.num_preemptions:12,} {result.num_swaps:7,} "
            f"{result.seconds:12.1f} {result.num_steps:8,} {seconds:8.1f} "
            f"{seconds / result.num_output_tokens * 1e6:9.1f}"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--blocks", type=int, default=1000, help="of 16 tokens")
    parser.add_argument("--prompt-tokens", type=int, default=170, help="in the mean")
    parser.add_argument("--output-tokens", type=int, default=140, help="in the mean")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--waiting", type=int, help="requests held ready [default: 4 x max_num_seqs]")
    parser.add_argument("--bus-bandwidth", type=float, default=COSTS.bus_bandwidth, help="bytes a second to the host")
    parser.add_argument("--settings", default=";".join(SETTINGS), help="separated by semicolons")
    return parser.parse_args()


def make_requests(options: argparse.Namespace) -> Iterator[SimulatedRequest]:
    """Lengths are spread as those of real prompts and answers: many short ones, a few long ones."""
    generator = random.Random(0)
    for index in range(options.requests):
        num_prompt_tokens = min(8 * options.prompt_tokens, _spread(generator, options.prompt_tokens, 0.6))
        num_output_tokens = min(options.max_tokens, _spread(generator, options.output_tokens, 0.9))
        first = index << 20
        yield SimulatedRequest(tuple(range(first, first + num_prompt_tokens)), num_output_tokens, options.max_tokens)


def _spread(generator: random.Random, mean: float, sigma: float) -> int:
    """Of a lognormal distribution with this mean, at least 1."""
    return max(1, round(mean * generator.lognormvariate(-(sigma**2) / 2, sigma)))


if __name__ == "__main__":
    main()
