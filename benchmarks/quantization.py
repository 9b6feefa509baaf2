"""Perplexity of a model over a text, and its answers to rows, with int8 weights and caches against its own type.

    python benchmarks/quantization.py --model smollm2-135m text.jsonl
    python benchmarks/quantization.py reviews.jsonl --prompt "Good or bad? {text}" --choices Good,Bad
    python benchmarks/quantization.py chats.jsonl --messages-column messages --num-rows 500

Of every row the first token of the answer is compared, the likeliest of all and, with `--choices`, the likeliest of
those that the choices begin with. A row in which the model's own two likeliest tokens are nearly tied says little about
rounding: how many of those that differ were within 0.1 of each other in log-probability is told apart.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from kv_dtype import logprobs_of, read_text

from infer.engine.batch import build_batch
from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.kv_cache_manager import KVCacheManager
from infer.engine.model_runner import ModelRunner
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.engine.scheduler import Scheduler
from infer.engine.sequence import Sequence

SETTINGS: dict[str, dict[str, Any]] = {
    "own": {},
    "int8": {"quantization": "int8"},
    "int8 + int8 cache": {"quantization": "int8", "kv_cache_dtype": "int8"},
}
TIE = 0.1
NUM_SPARE_BLOCKS = 2000
"""For prompts that are computed together, and for what they share."""


@dataclass(frozen=True, slots=True)
class Answers:
    """First tokens, a row each."""

    likeliest: list[int]
    margins: list[float]
    """Between the two likeliest, in log-probability."""
    chosen: list[int]
    """Of those that the choices begin with."""
    choice_margins: list[float]


def main() -> None:
    options = parse_arguments()
    baseline: tuple[float, Answers | None] | None = None
    for name, settings in SETTINGS.items():
        start = time.perf_counter()
        engine = Engine(EngineConfig(model=options.model, dtype=options.dtype, **settings))
        perplexity = perplexity_of(engine, options)
        answers = answers_of(engine, options)
        seconds = time.perf_counter() - start
        if baseline is None:
            baseline = perplexity, answers
            print("\n".join(engine.describe()))
        print(f"{name}: perplexity {perplexity:.4f} ({perplexity / baseline[0] - 1:+.3%}), {seconds:.0f} s", flush=True)
        if answers is not None and baseline[1] is not None:
            own = baseline[1]
            print(f"  first token: {agreement(own.likeliest, answers.likeliest, own.margins)}")
            if options.choices:
                print(f"  choice: {agreement(own.chosen, answers.chosen, own.choice_margins)}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="a text, or rows as JSONL by its name")
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float16", "float32"], default="auto")
    parser.add_argument("--prompt", help="what is asked of a row, with its columns in braces")
    parser.add_argument("--messages-column", help="the column of a row that is its messages")
    parser.add_argument("--choices", type=lambda text: text.split(","), default=[], help="answers, by commas")
    parser.add_argument("--num-rows", type=int, default=2000, help="how many rows are asked")
    parser.add_argument("--window", type=int, default=1024, help="tokens that see each other")
    parser.add_argument("--num-tokens", type=int, default=40_000, help="how much of the text")
    return parser.parse_args()


def perplexity_of(engine: Engine, options: argparse.Namespace) -> float:
    network = engine.network
    config = replace(engine.config, max_num_seqs=1, max_num_batched_tokens=256, enable_prefix_caching=False)
    token_ids = network.loaded.tokenizer.encode(read_text(options.text))[: options.num_tokens]
    windows = [token_ids[start : start + options.window] for start in range(0, len(token_ids), options.window)]
    num_blocks = -(-options.window // config.block_size)
    runner = ModelRunner(network.model, network.allocate_kv_cache(num_blocks))
    logprobs = [logprobs_of(tokens, config, runner, num_blocks, network.device) for tokens in windows]
    return math.exp(-torch.cat(logprobs).double().mean())


def answers_of(engine: Engine, options: argparse.Namespace) -> Answers | None:
    prompts = prompts_of(engine, options)
    if not prompts:
        return None
    encode = engine.network.loaded.tokenizer.encode
    first = torch.tensor(sorted({encode(choice, add_special_tokens=False)[0] for choice in options.choices}))
    if options.choices and len(first) < len(options.choices):
        raise SystemExit(f"choices must begin with different tokens: {','.join(options.choices)}")
    logits = last_logits(engine, prompts)
    chosen, choice_margins = likeliest_of(logits[:, first]) if len(first) > 1 else ([], [])
    return Answers(*likeliest_of(logits), chosen, choice_margins)


def last_logits(engine: Engine, prompts: list[list[int]]) -> torch.Tensor:
    """float32 `[num_prompts, vocab_size]`: behind the last token of each."""
    network, config = engine.network, engine.config
    num_blocks = max(len(prompt) for prompt in prompts) // config.block_size + NUM_SPARE_BLOCKS
    scheduler = Scheduler(config, KVCacheManager(num_blocks, config.block_size, enable_prefix_caching=True))
    runner = ModelRunner(network.model, network.allocate_kv_cache(num_blocks))
    for number, prompt in enumerate(prompts):
        scheduler.add(Sequence(Request(number, tuple(prompt), SamplingParams(max_tokens=1))))
    rows: dict[int, torch.Tensor] = {}
    while scheduler.has_unfinished():
        output = scheduler.schedule()
        batch = build_batch(output, config.block_size, network.device)
        logits = runner.execute(batch).float().cpu()
        scheduler.update(output)
        for sequence, row in zip(batch.sampling, logits, strict=True):
            rows[sequence.request.request_id] = row
            scheduler.finish(sequence)
    return torch.stack([rows[number] for number in range(len(prompts))])


def likeliest_of(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """Indices, and by how much each was likelier than the next."""
    values, indices = logits.topk(2)
    return indices[:, 0].tolist(), (values[:, 0] - values[:, 1]).tolist()


def prompts_of(engine: Engine, options: argparse.Namespace) -> list[list[int]]:
    """Token ids, as a chat where the model has a template."""
    if not options.prompt and not options.messages_column:
        return []
    lines = options.text.read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line][: options.num_rows]
    tokenizer = engine.network.loaded.tokenizer
    prompts: list[list[int]] = []
    for row in rows:
        messages = row[options.messages_column] if options.messages_column else None
        messages = messages or [{"role": "user", "content": options.prompt.format(**row)}]
        if tokenizer.chat_template is None:
            prompts.append(tokenizer.encode(messages[-1]["content"]))
        else:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            prompts.append(tokenizer.encode(text, add_special_tokens=False))
    return prompts


def agreement(own: list[int], other: list[int], margins: list[float]) -> str:
    different = [margin for before, after, margin in zip(own, other, margins, strict=True) if before != after]
    ties = sum(margin < TIE for margin in different)
    share = 1 - len(different) / len(own)
    return f"{share:.2%} of {len(own):,} rows agree; of the {len(different)} others {ties} were nearly tied"


if __name__ == "__main__":
    main()
