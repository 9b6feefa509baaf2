"""Attending to a prefix once for all that share it changes no answer."""

from __future__ import annotations

import random

import pytest
from greedy import GREEDY, generate_alone, run_checked
from tiny_models import VOCAB_SIZE, make_model, save_model

from infer.engine import batch
from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.sampling_params import SamplingParams

LONGER = {"max_position_embeddings": 1024}


def make_prompts(num_prompts: int) -> list[list[int]]:
    """All begin alike; every other one goes on alike."""
    rng = random.Random(0)
    text = [rng.randrange(4, VOCAB_SIZE) for _ in range(530)]
    return [
        [*text[: 530 if number % 2 else 270], *(rng.randrange(4, VOCAB_SIZE) for _ in range(3 + number))]
        for number in range(num_prompts)
    ]


@pytest.fixture
def num_groups(monkeypatch) -> list[int]:
    """Of each step."""
    found: list[int] = []
    find = batch.find_shared_prefixes

    def counted(*arguments):
        prefixes = find(*arguments)
        found.append(len(prefixes.groups))
        return prefixes

    monkeypatch.setattr(batch, "find_shared_prefixes", counted)
    return found


@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_output_of_shared_prefixes_equals_transformers(tmp_path, num_groups, model_type):
    folder = save_model(tmp_path, model_type, **LONGER)
    prompts = make_prompts(6)
    expected = generate_alone(make_model(model_type, **LONGER), prompts)
    for backend in ("auto", "reference"):
        engine = Engine(EngineConfig(model=str(folder), dtype="float32", attention_backend=backend))
        completions = run_checked(engine, prompts, GREEDY)
        assert [list(completion.token_ids) for completion in completions] == expected
    assert max(num_groups) >= 2


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_logprobs_do_not_depend_on_what_is_shared(tmp_path, num_groups, kv_cache_dtype):
    folder = save_model(tmp_path, "llama", **LONGER)
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, logprobs=3)
    answers = []
    for shared_prefix_attention in (True, False):
        config = EngineConfig(
            model=str(folder),
            dtype="float32",
            kv_cache_dtype=kv_cache_dtype,
            shared_prefix_attention=shared_prefix_attention,
        )
        completions = run_checked(Engine(config), make_prompts(12), params)
        answers.append([completion.choices[0].logprobs for completion in completions])
    assert answers[0] == answers[1]
    assert max(num_groups) >= 2


def test_nothing_is_looked_for_where_it_is_off(tmp_path, num_groups):
    folder = save_model(tmp_path, "llama", **LONGER)
    run_checked(Engine(EngineConfig(model=str(folder), shared_prefix_attention=False)), make_prompts(3), GREEDY)
    assert num_groups == []
