"""A linear layer whose weight stays in few bits against oneDNN's in bfloat16, by numbers of rows.

python benchmarks/dequant_linear.py
python benchmarks/dequant_linear.py --type Q4_K --shape 3072x768 --copies 30
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import gguf
import numpy as np
import torch

from infer.kernels import cpu
from infer.kernels.gguf_blocks import PACKED_TYPES, blocks_to_codes
from infer.kernels.grouped_weight import pack_codes

if TYPE_CHECKING:
    from collections.abc import Callable

    from infer.kernels.grouped_weight import GroupedWeight

ROWS = (1, 4, 16, 64, 128, 512, 2048)


def main() -> None:
    options = parse_arguments()
    out_features, in_features = map(int, options.shape.split("x"))
    grouped = [make_weight(options.type, out_features, in_features, seed) for seed in range(options.copies)]
    dense = [
        torch.ops.mkldnn._reorder_linear_weight(torch.randn(out_features, in_features).bfloat16(), 256)
        for _ in range(options.copies)
    ]
    print(f"{options.type}, {options.shape}, {options.copies} layers by turns, {torch.get_num_threads()} threads")
    for num_rows in ROWS:
        hidden = torch.randn(num_rows, in_features).bfloat16()
        ours = seconds_of(lambda i: cpu.dequant_linear(hidden, [grouped[i]]), options.copies)  # noqa: B023
        theirs = seconds_of(
            lambda i: torch.ops.mkldnn._linear_pointwise(hidden, dense[i], None, "none", [], ""),  # noqa: B023
            options.copies,
        )
        flops = 2 * num_rows * in_features * out_features
        print(
            f"{num_rows:5} rows: {ours * 1e3:8.3f} ms, {flops / ours / 1e9:4.0f} GFLOP/s; "
            f"bfloat16 {theirs * 1e3:8.3f} ms, {flops / theirs / 1e9:4.0f} GFLOP/s; {theirs / ours:.2f} times as fast",
            flush=True,
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--type", choices=sorted(PACKED_TYPES), default="Q4_1")
    parser.add_argument("--shape", default="3072x576", help="outputs by inputs")
    parser.add_argument("--copies", type=int, default=12, help="different weights, so that they are not all in a cache")
    return parser.parse_args()


def make_weight(type_name: str, out_features: int, in_features: int, seed: int) -> GroupedWeight:
    """Random bytes, small enough for every scale to be a number."""
    elements, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 60, (out_features, in_features // elements * num_bytes), dtype=np.uint8)
    return pack_codes(blocks_to_codes(type_name, torch.from_numpy(blocks)))


def seconds_of(multiply: Callable[[int], object], copies: int) -> float:
    """Of one call, the median of five rounds over all weights."""
    rounds = []
    for number in range(6):
        start = time.perf_counter()
        for index in range(copies):
            multiply(index)
        if number:
            rounds.append((time.perf_counter() - start) / copies)
    return statistics.median(rounds)


if __name__ == "__main__":
    main()
