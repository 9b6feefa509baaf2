"""vLLM, offline, on rows of `workloads.py`: prints one JSON line. Runs in vLLM's own virtual environment.

The settings are the best that we know for a CPU; on a GPU its defaults are taken. Block size 32: with the default of
128 it shares little of a prefix on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-gib", type=int, default=4, help="size of the KV cache on a CPU")
    options = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    settings: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "enable_prefix_caching": True,
        "seed": 0,
    }
    if options.device == "cpu":
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(options.kv_gib)
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{len(os.sched_getaffinity(0)) - 1}")
        settings |= {"block_size": 32, "max_num_seqs": 256, "max_num_batched_tokens": 4096}
    rows = [json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines()]
    settings["max_model_len"] = max(len(row["prompt_ids"]) + row["max_tokens"] for row in rows)

    started = time.perf_counter()
    from vllm import LLM, SamplingParams

    engine = LLM(**settings)
    loaded = time.perf_counter()
    greedy = [SamplingParams(temperature=0, max_tokens=row["max_tokens"], ignore_eos=row["ignore_eos"]) for row in rows]
    prompts = [{"prompt_token_ids": row["prompt_ids"]} for row in rows]
    engine.generate(prompts[:8], [SamplingParams(temperature=0, max_tokens=2)] * len(prompts[:8]), use_tqdm=False)
    engine.reset_prefix_cache()
    begun = time.perf_counter()
    outputs = engine.generate(prompts, greedy, use_tqdm=False)
    ended = time.perf_counter()
    num_tokens = [len(output.outputs[0].token_ids) for output in outputs]
    seconds = {"load": loaded - started, "run": ended - begun}
    print(json.dumps({"rows": len(rows), "completion_tokens": sum(num_tokens), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
