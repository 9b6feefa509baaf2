"""Perplexity of a model over a text with each dtype of the KV cache, against that of the model's own.

    python benchmarks/kv_dtype.py --model smollm2-135m text.jsonl
    python benchmarks/kv_dtype.py --model ./model --dtype float32 --window 2048 --num-tokens 100000 book.txt

The text, of a JSONL file all strings of its lines, is cut into windows of tokens. Each goes through scheduler, model
runner and paged cache in chunks, as a prompt does, so that queries read keys and values as the cache holds them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from infer.engine.batch import build_batch
from infer.engine.config import EngineConfig
from infer.engine.fitting import choose_backend, choose_device
from infer.engine.kv_cache import allocate_kv_cache
from infer.engine.kv_cache_manager import KVCacheManager
from infer.engine.model_runner import ModelRunner
from infer.engine.network import load_network
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.engine.scheduler import Scheduler
from infer.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator


def main() -> None:
    options = parse_arguments()
    config = EngineConfig(
        model=options.model,
        dtype=options.dtype,
        attention_backend=options.attention_backend,
        max_num_batched_tokens=options.chunk,
        max_num_seqs=1,
        enable_prefix_caching=False,
    )
    device = choose_device(config.device)
    network = load_network(config.model, config, device, print)
    loaded = network.loaded
    specs = [replace(network.cache_spec, kv_cache_dtype=name) for name in ("auto", "int8", "fp8")]
    backends = [choose_backend(config, device, spec) for spec in specs]
    token_ids = loaded.tokenizer.encode(read_text(options.text))[: options.num_tokens]
    windows = [token_ids[start : start + options.window] for start in range(0, len(token_ids), options.window)]
    num_blocks = -(-options.window // config.block_size)
    print(f"{loaded.name}, {len(token_ids):,} tokens in windows of {options.window}, chunks of {options.chunk}")
    baseline = None
    for spec, backend in zip(specs, backends, strict=True):
        start = time.perf_counter()
        runner = ModelRunner(loaded.model, allocate_kv_cache(spec, num_blocks, backend, device))
        logprobs = torch.cat([logprobs_of(tokens, config, runner, num_blocks, device) for tokens in windows])
        perplexity = math.exp(-logprobs.double().mean())
        baseline = baseline or perplexity
        print(
            f"{spec.cache_dtype_name:>9} cache, {backend.name}: perplexity {perplexity:.4f} "
            f"({perplexity / baseline - 1:+.3%}), {spec.num_bytes_per_block / spec.block_size:,.0f} bytes a token, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="a text, or JSONL by its name")
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float16", "float32"], default="auto")
    parser.add_argument("--attention-backend", choices=["auto", "reference", "cpu", "triton"], default="auto")
    parser.add_argument("--window", type=int, default=1024, help="tokens that see each other")
    parser.add_argument("--chunk", type=int, default=256, help="tokens in a step")
    parser.add_argument("--num-tokens", type=int, default=40_000, help="how much of the text")
    return parser.parse_args()


def read_text(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return "\n\n".join(strings_of(text)) if path.suffix == ".jsonl" else text


def strings_of(lines: str) -> Iterator[str]:
    for line in lines.split("\n"):
        if line:
            yield "\n".join(value for value in json.loads(line).values() if isinstance(value, str))


def logprobs_of(
    token_ids: list[int], config: EngineConfig, runner: ModelRunner, num_blocks: int, device: torch.device
) -> torch.Tensor:
    """Of every token but the first, given those before it."""
    scheduler = Scheduler(config, KVCacheManager(num_blocks, config.block_size, enable_prefix_caching=False))
    scheduler.add(Sequence(Request(0, tuple(token_ids[:-1]), SamplingParams(max_tokens=1))))
    logprobs: list[torch.Tensor] = []
    num_computed = 0
    while num_computed < len(token_ids) - 1:
        output = scheduler.schedule()
        batch = build_batch(output, config.block_size, device)
        num_tokens = batch.input_ids.shape[1]
        logits = runner.execute(replace(batch, logits_indices=torch.arange(num_tokens, device=device)))
        following = torch.tensor(token_ids[num_computed + 1 : num_computed + 1 + num_tokens], device=device)
        logprobs.append(-torch.nn.functional.cross_entropy(logits.float(), following, reduction="none"))
        scheduler.update(output)
        num_computed += num_tokens
    return torch.cat(logprobs)


if __name__ == "__main__":
    main()
