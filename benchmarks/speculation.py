"""Generates with and without drafts by turns: seconds of each, their ratio, and how many drafts were right.

    python benchmarks/speculation.py --model smollm2-135m
    python benchmarks/speculation.py --jobs copy,tail --modes off,auto,always --rounds 5

Jobs: `copy` 16 prompts that ask for their own text again; `tail` a long answer of that kind among 31 short ones;
`alone` one prompt of random tokens; `unique` 128 of these, 128 tokens generated each; `drawn` that at temperature 1,
where hardly a guess is right.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

SUBJECTS = ("kettle", "lamp", "bicycle", "tent", "radio", "clock", "drill", "kite")
VERBS = ("arrived late", "broke after two weeks", "works as described", "was easy to set up")


def main() -> None:
    options = parse_arguments()
    base = EngineConfig(model=options.model, dtype=options.dtype, num_speculative_tokens=options.drafts)
    engines = {mode: Engine(replace(base, speculative=mode)) for mode in options.modes.split(",")}
    print(f"{'job':8} {'mode':8} {'seconds':>8} {'ratio':>6} {'steps':>6} {'drafts':>7} {'right':>7} same answers")
    for job in options.jobs.split(","):
        seconds: dict[str, list[float]] = {mode: [] for mode in engines}
        answers, figures = {}, {}
        for number in range(options.rounds):
            for mode, engine in engines.items():
                before = engine.stats()
                requests = JOBS[job](engine, random.Random(number))
                begin = time.perf_counter()
                answers[mode] = generate(engine, requests)
                seconds[mode].append(time.perf_counter() - begin)
                after = engine.stats()
                figures[mode] = [
                    getattr(after, name) - getattr(before, name)
                    for name in ("num_steps", "draft_tokens_total", "accepted_tokens_total")
                ]
        reference = next(iter(engines))
        for mode in engines:
            ratio = median(x / y for x, y in zip(seconds[mode], seconds[reference], strict=True))
            steps, drafts, right = figures[mode]
            same = sum(answers[mode][key] == answers[reference][key] for key in answers[mode])
            print(
                f"{job:8} {mode:8} {median(seconds[mode]):8.2f} {ratio:6.2f} {steps:6} {drafts:7,} {right:7,} "
                f"{same} of {len(answers[mode])}",
                flush=True,
            )


def generate(engine: Engine, requests: list[Request]) -> dict[int, tuple[int, ...]]:
    for request in requests:
        engine.add_request(request)
    answers = {}
    while engine.has_unfinished_requests():
        answers |= {completion.request_id: completion.token_ids for completion in engine.step()}
    return answers


def copy(engine: Engine, rng: random.Random) -> list[Request]:
    requests = []
    for number in range(16):
        text = " ".join(f"The {rng.choice(SUBJECTS)} {number} {rng.choice(VERBS)}." for _ in range(12))
        prompt = f"Text: {text}\n\nThe same text, with every error corrected: {text}\n\nThe same text again:"
        requests.append(make_request(number, engine.tokenizer.encode(prompt, add_special_tokens=True), 128))
    return requests


def unique(engine: Engine, rng: random.Random) -> list[Request]:
    return [make_request(number, random_tokens(engine, rng, rng.randint(60, 150)), 128) for number in range(128)]


def tail(engine: Engine, rng: random.Random) -> list[Request]:
    long, *_ = copy(engine, rng)
    params = replace(long.sampling_params, max_tokens=384)
    short = [make_request(number, random_tokens(engine, rng, 100), 32) for number in range(1, 32)]
    return [replace(long, sampling_params=params), *short]


def alone(engine: Engine, rng: random.Random) -> list[Request]:
    return [make_request(0, random_tokens(engine, rng, 100), 128)]


def drawn(engine: Engine, rng: random.Random) -> list[Request]:
    requests = unique(engine, rng)
    params = replace(requests[0].sampling_params, temperature=1.0)
    return [replace(request, sampling_params=params, seed=request.request_id) for request in requests]


def make_request(number: int, token_ids: list[int], max_tokens: int) -> Request:
    return Request(number, tuple(token_ids), SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))


def random_tokens(engine: Engine, rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(10, engine.vocab_size) for _ in range(length)]


JOBS: dict[str, Callable[[Engine, random.Random], list[Request]]] = {
    "copy": copy,
    "tail": tail,
    "alone": alone,
    "unique": unique,
    "drawn": drawn,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--modes", default="off,auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drafts", type=int, default=EngineConfig().num_speculative_tokens)
    return parser.parse_args()


if __name__ == "__main__":
    main()
