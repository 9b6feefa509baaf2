"""Times a model's linear layers: our products beside oneDNN's and torch's, for numbers of rows in a step.

    python benchmarks/linear.py
    python benchmarks/linear.py --rows 1 128 2048 --dtype float32 --sizes 576x960 576x3072

As many layers as in a model, each with weights of its own, so that these come from memory. The three take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

from infer.engine.prepack import OneDNNLinear, PackedLinear

SMOLLM2_135M = ["576x960", "576x576", "576x3072", "1536x576"]


@torch.inference_mode()
def main() -> None:
    options = parse_arguments()
    dtype: torch.dtype = getattr(torch, options.dtype)
    print(f"{options.dtype}, {torch.get_num_threads()} threads, {options.layers} layers; microseconds, GFLOP/s")
    for size in options.sizes:
        depth, width = map(int, size.split("x"))
        plain = [nn.Linear(depth, width, bias=False).to(dtype) for _ in range(options.layers)]
        kinds: dict[str, list[nn.Module]] = {
            "ours": [PackedLinear(linear.weight, None) for linear in plain],
            "onednn": [OneDNNLinear(linear.weight, None) for linear in plain],
            "torch": list(plain),
        }
        for num_rows in options.rows:
            hidden = torch.randn(num_rows, depth).to(dtype)
            seconds: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(options.repeats + 1):
                for name, layers in kinds.items():
                    started = time.perf_counter()
                    for layer in layers:
                        layer(hidden)
                    seconds[name].append((time.perf_counter() - started) / len(layers))
            medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
            shown = (
                f"{name} {each * 1e6:.0f} ({2e-9 * num_rows * depth * width / each:.0f})"
                for name, each in medians.items()
            )
            print(f"{size}, {num_rows} rows: {', '.join(shown)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SMOLLM2_135M, metavar="INxOUT", help="of the layers")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128, 512, 2048], help="tokens in a step")
    parser.add_argument("--layers", type=int, default=30, help="of each size")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
