"""Ours and peers by turns on the same rows: medians, the ratio to the best peer, the share of the machine's limit.

    python benchmarks/compare.py rows/*.jsonl --model ./model --peer vllm=./vllm --peer openvino=./openvino
    python benchmarks/compare.py rows/grouped.jsonl --model ./model --infer a="old/bin/infer run" --infer b="infer run"
    python benchmarks/compare.py rows/*.jsonl --model ./model --ablate

The rows are those that `workloads.py` writes. Of ours counts all that it does after the model is loaded: reading, chat
template, tokenising, generating, detokenising, writing. Peers are given token ids, and only their generating counts.
`other cpu` is what other processes took of the machine meanwhile; where it is more than a second, measure again.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from ablations import ablations
from contenders import Contender, InferContender, PeerContender, RunFailedError, TimedResult
from results import table_lines
from transformers import AutoConfig

from infer.engine.limits import measure_limits
from infer.engine.model_flops import count_model_flops
from infer.engine.required_work import required_work, row_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.engine.limits import MachineLimits

_DEFAULT_COMMAND = "infer run"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    contenders = make_contenders(options)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    limits = measure_limits(device, getattr(torch, options.dtype))
    print(f"limits: {limits.gemm_flops / 1e9:,.0f} GFLOP/s, {limits.read_bandwidth / 1e9:,.1f} GB/s", flush=True)
    with options.save.open("a") if options.save else nullcontext() as save:
        for rows in options.rows:
            limit_seconds = least_seconds(rows, options.model, limits)
            results: dict[str, list[TimedResult]] = {each.name: [] for each in contenders}
            for number in range(1, options.rounds + 1):
                for contender in contenders:
                    result = contender.run(rows, options.model)
                    results[contender.name].append(result)
                    if save is not None:
                        line = {"workload": rows.stem, "name": contender.name, "round": number, **result.to_json()}
                        save.write(json.dumps(line) + "\n")
                        save.flush()
            peers = {each.name for each in contenders if each.is_peer}
            for line in table_lines(rows.stem, results, peers, limit_seconds):
                print(line, flush=True)
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", type=Path, help="files of workloads.py")
    parser.add_argument("--model", required=True, help="a directory: peers know no names of ours")
    parser.add_argument(
        "--infer", action="append", default=[], metavar="[NAME=]COMMAND", help=f"several may run [{_DEFAULT_COMMAND}]"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=VENV", help="vllm, openvino, openvino-int8"
    )
    parser.add_argument("--ablate", action="store_true", help="the first command again without each optimisation alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"], help="of the limit")
    parser.add_argument("--save", type=Path, help="append every single result to this JSONL file")
    return parser.parse_args(arguments)


def make_contenders(options: argparse.Namespace) -> list[Contender]:
    ours = [InferContender.parse(text) for text in options.infer or [_DEFAULT_COMMAND]]
    names = [each.name for each in ours]
    if len(set(names)) < len(names):
        sys.exit(f"commands need names of their own, NAME=COMMAND: {', '.join(names)}")
    if options.ablate:
        first = ours[0]
        for name, flags in ablations(first.help_page()).items():
            ours.append(InferContender(f"no {name}", first.command, flags))
    return [*(PeerContender.parse(text) for text in options.peer), *ours]


def least_seconds(rows: Path, model: str, limits: MachineLimits) -> float:
    """All operations that these rows need, at the rate of a large product."""
    lines = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    lengths = row_lengths([line["prompt_ids"] for line in lines], [line["max_tokens"] for line in lines])
    work = required_work(lengths, count_model_flops(AutoConfig.from_pretrained(model)), 0)
    return work.flops / limits.gemm_flops


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RunFailedError as error:
        sys.exit(str(error))
