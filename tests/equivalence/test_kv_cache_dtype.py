"""With a quantised cache, too, greedy output depends on the prompt alone: queries read what the cache holds, their own
chunk's keys included."""

from __future__ import annotations

import pytest
from greedy import generate_ours, make_prompts
from tiny_models import save_model

PROMPTS = make_prompts()
MODELS = ["llama", "gemma2"]
CACHE_DTYPES = ["int8", "fp8"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """By model and dtype of the cache: a saved model and what the engine generates with its defaults."""
    known = {}

    def get(model_type, kv_cache_dtype):
        key = model_type, kv_cache_dtype
        if key not in known:
            folder = save_model(tmp_path_factory.mktemp(model_type), model_type)
            known[key] = folder, generate_ours(folder, PROMPTS, kv_cache_dtype=kv_cache_dtype)
        return known[key]

    return get


@pytest.mark.parametrize("kv_cache_dtype", CACHE_DTYPES)
@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize(
    "config",
    [
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 7},
        {"block_size": 32},
        {"block_size": 7},
        {"max_num_seqs": 1},
        {"num_blocks": 6, "enable_admission_control": False},
        {"num_blocks": 6, "enable_admission_control": False, "enable_prefix_caching": False},
        {"attention_backend": "reference", "max_num_batched_tokens": 5},
    ],
    ids=str,
)
def test_output_does_not_depend_on_how_it_is_scheduled(expected, model_type, kv_cache_dtype, config):
    folder, tokens = expected(model_type, kv_cache_dtype)
    assert generate_ours(folder, PROMPTS, kv_cache_dtype=kv_cache_dtype, **config) == tokens


@pytest.mark.parametrize("model_type", MODELS)
def test_dtypes_of_the_cache_give_outputs_of_their_own(expected, model_type):
    """So the tests above do not compare one unquantised cache with another."""
    outputs = [expected(model_type, kv_cache_dtype)[1] for kv_cache_dtype in ("auto", *CACHE_DTYPES)]
    for index, tokens in enumerate(outputs):
        assert tokens not in outputs[:index]
