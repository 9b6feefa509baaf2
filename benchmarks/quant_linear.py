"""Times linear layers in int8 on a CPU, and what quantises their input, beside the same layers in bfloat16.

    python benchmarks/quant_linear.py --layer 576x960 576x576 576x3072 1536x576 576x49152 --rows 1 8 128 512

Every shape has several weights, as the layers of a model have, so that they do not all come from the nearest cache.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from infer.engine.prepack import prepack_linears
from infer.kernels.backend import select_backend
from infer.kernels.quant_linear import pack_weight, quant_linear, quantize_tokens, quantize_weight, rotation_of

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_WEIGHTS = 32 << 20
"""Of a shape, in all its layers."""


def main() -> None:
    options = parse_arguments()
    backend = select_backend(torch.device("cpu"), torch.bfloat16, head_dim=64, block_size=16)
    print(f"{backend.name} kernels, {torch.get_num_threads()} threads; Gop/s, and microseconds to quantise the input")
    for layer in options.layer:
        in_features, out_features = (int(size) for size in layer.split("x"))
        num_layers = max(1, min(options.num_layers, MAX_WEIGHTS // (in_features * out_features)))
        layers = [nn.Linear(in_features, out_features, bias=False) for _ in range(num_layers)]
        plain = nn.ModuleList(layers).bfloat16().requires_grad_(False)
        rotation = rotation_of(in_features)
        quantized = [quantize_weight(layer.weight, rotation=rotation) for layer in layers]
        packed = [pack_weight(weight, backend=backend) for weight in quantized]
        prepack_linears(plain)
        for num_rows in options.rows:
            hidden = torch.randn(1, num_rows, in_features).bfloat16()
            quantize = partial(quantize_tokens, hidden, torch.int8, rotation, backend=backend)
            tokens = quantize()
            multiply = partial(quant_linear, tokens, dtype=torch.bfloat16, backend=backend)
            by_kind = {
                "int8": seconds([partial(multiply, weight) for weight in packed]),
                "bfloat16": seconds([partial(layer, hidden) for layer in plain]),
            }
            quantizing = seconds([quantize] * 8)
            speeds = (
                f"{kind} {2 * hidden.numel() * out_features / each / 1e9:7,.0f}" for kind, each in by_kind.items()
            )
            print(f"{layer:>12} {num_rows:5} rows: {', '.join(speeds)}, {quantizing * 1e6:6.1f} us", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shapes = ["576x960", "576x576", "576x3072", "1536x576", "576x49152"]
    parser.add_argument("--layer", nargs="+", default=shapes, help="inputs x outputs")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 128, 512])
    parser.add_argument("--num-layers", type=int, default=10, help="of a shape, at most")
    return parser.parse_args()


def seconds(calls: list[Callable[[], object]], repeats: int = 5) -> float:
    """Of a call: the median of some rounds through all."""
    rounds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for call in calls:
            call()
        rounds.append((time.perf_counter() - begin) / len(calls))
    return statistics.median(rounds)


if __name__ == "__main__":
    main()
