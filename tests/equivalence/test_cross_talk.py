"""1,000 rows through a cache that is far too small give what each gives alone: none reads the blocks of another."""

from __future__ import annotations

import json
from itertools import islice, product
from pathlib import Path

import pytest
from tiny_models import save_model

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.sampling_params import SamplingParams

REVIEWS = Path(__file__).parents[2] / "examples" / "reviews" / "reviews.jsonl"
QUESTIONS = ("Is it good? ", "Summarise this review in one word: ", "Who wrote it? ", "", "What is it about? Say: ")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def generate(engine: Engine, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    completions = engine.generate(prompts, GREEDY)
    assert [completion.error for completion in completions] == [None] * len(prompts)
    return [completion.token_ids for completion in completions]


@pytest.mark.slow
@pytest.mark.reliability
def test_rows_give_the_same_tokens_together_as_one_at_a_time(tmp_path, figure):
    folder = str(save_model(tmp_path, "llama", num_hidden_layers=2))
    alone = Engine(EngineConfig(model=folder, dtype="float32", max_num_seqs=1, enable_prefix_caching=False))
    texts = [json.loads(line)["text"] for line in REVIEWS.read_text(encoding="utf-8").splitlines()]
    rows = islice(product(texts, QUESTIONS), 1000)
    prompts = [alone.tokenizer.encode(question + text, add_special_tokens=True)[:120] for text, question in rows]
    assert len(prompts) == 1000
    together = Engine(
        EngineConfig(
            model=folder,
            dtype="float32",
            num_blocks=120,
            block_size=4,
            max_num_seqs=32,
            max_num_batched_tokens=200,
            enable_admission_control=False,
        )
    )
    assert generate(together, prompts) == generate(alone, prompts)
    stats = together.stats()
    figure("cross-talk", f"{len(prompts):,} rows, {stats.num_preemptions_total} preemptions, the same tokens")
    assert stats.num_preemptions_total > 50
    assert stats.prefix_cache_hits > 1000
