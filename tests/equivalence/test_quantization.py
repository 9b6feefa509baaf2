"""In int8, too, greedy output depends on the prompt alone: a token's products are those of the token, wherever it is
computed, and beside whom."""

from __future__ import annotations

import pytest
from greedy import generate_ours, make_prompts
from tiny_models import save_model

PROMPTS = make_prompts()
MODELS = ["llama", "gemma2"]
INT8 = {"quantization": "int8"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """By model and dtype of the cache: a saved model and what the engine generates with its defaults."""
    known = {}

    def get(model_type, kv_cache_dtype="auto"):
        key = model_type, kv_cache_dtype
        if key not in known:
            folder = save_model(tmp_path_factory.mktemp(model_type), model_type)
            known[key] = folder, generate_ours(folder, PROMPTS, **INT8, kv_cache_dtype=kv_cache_dtype)
        return known[key]

    return get


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize(
    "config",
    [
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 7},
        {"block_size": 32},
        {"max_num_seqs": 1},
        {"num_blocks": 6, "enable_admission_control": False},
    ],
    ids=str,
)
def test_output_does_not_depend_on_how_it_is_scheduled(expected, model_type, config):
    folder, tokens = expected(model_type)
    assert generate_ours(folder, PROMPTS, **INT8, **config) == tokens


@pytest.mark.parametrize("config", [{"max_num_batched_tokens": 7}, {"max_num_seqs": 1}], ids=str)
def test_output_with_an_int8_cache_does_not_depend_on_how_it_is_scheduled(expected, config):
    folder, tokens = expected("llama", "int8")
    assert generate_ours(folder, PROMPTS, **INT8, kv_cache_dtype="int8", **config) == tokens


def test_output_is_that_of_int8(expected):
    """So the tests above do not compare one model that is not quantised with another."""
    folder, tokens = expected("llama")
    assert len({tuple(each) for each in (*tokens, *generate_ours(folder, PROMPTS))}) > len(PROMPTS)
