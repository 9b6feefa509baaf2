"""Writes the rows of the four measured shapes, from a seed: no text of others in them.

    python benchmarks/workloads.py --model ./model rows/
    python benchmarks/workloads.py --model ./model --full --seed 3 rows/ label-short grouped

Each line has `prompt`, `max_tokens`, `ignore_eos`, `id`, `group`, and `prompt_ids`: the prompt as `infer run` asks it,
in tokens, for engines that are given those. `infer bench --workload NAME` measures the short form without a file.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import transformers

from infer.cli.bench_shapes import SHAPES, make_rows
from infer.cli.prompt import PromptBuilder, PromptSpec
from infer.cli.synthetic_text import token_counter
from infer.engine.tokenizer import Tokenizer
from infer.io.reader import open_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from infer.cli.bench_shapes import Shape

FULL_NUM_ROWS = {"label-short": 1000, "unique-gen": 256, "long-mixed": 128, "grouped": 512}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    tokenizer = load_tokenizer(options.model)
    for name in options.workloads or SHAPES:
        shape = SHAPES[name]
        if options.full:
            shape = replace(shape, num_rows=FULL_NUM_ROWS[name])
        path = write_rows(options.directory, name, shape, tokenizer, options.seed)
        print(f"{path}: {shape}")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("workloads", nargs="*", choices=[*SHAPES, []], metavar="NAME", help=", ".join(SHAPES))
    parser.add_argument("--model", required=True, help="directory whose tokenizer counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="two to two and a half times as many rows")
    return parser.parse_args(arguments)


def load_tokenizer(model: str) -> Tokenizer:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    return Tokenizer(tokenizer, (tokenizer.eos_token_id,))


def write_rows(directory: Path, name: str, shape: Shape, tokenizer: Tokenizer, seed: int) -> Path:
    """Returns where they are."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.jsonl"
    lines = list(make_rows(shape, token_counter(tokenizer), seed))
    write_lines(path, lines)
    # Read back as a run reads them, so that the tokens are those of a run.
    rows = list(open_source([str(path)]).rows(("prompt",)))
    prompts = PromptBuilder(PromptSpec(prompt_column="prompt"), tokenizer).build_many(rows)
    write_lines(path, [line | {"prompt_ids": prompt_ids} for line, prompt_ids in zip(lines, prompts, strict=True)])
    return path


def write_lines(path: Path, lines: Iterable[dict[str, object]]) -> None:
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


if __name__ == "__main__":
    main()
