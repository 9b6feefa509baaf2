"""Greedy output equals transformers' own, token for token, in float32: for every architecture, alone and batched,
whatever the blocks, the chunks, the order, preempted or not."""

from __future__ import annotations

import pytest
from greedy import generate_ours, make_prompts
from tiny_models import ARCHITECTURES

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.sampling_params import SamplingParams

PROMPTS = make_prompts()


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_batched_output_equals_transformers(oracle, model_type):
    folder, expected = oracle(model_type)
    assert len({tuple(tokens) for tokens in expected}) > len(expected) // 2, "the oracle's outputs hardly differ"
    assert generate_ours(folder, PROMPTS) == expected


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_output_of_one_at_a_time_equals_transformers(oracle, model_type):
    folder, expected = oracle(model_type)
    assert generate_ours(folder, PROMPTS, max_num_seqs=1, attention_backend="reference") == expected


# Mistral's layers all have windows, so that blocks are given back on the way.
@pytest.mark.parametrize("model_type", ["llama", "gemma2", "mistral"])
@pytest.mark.parametrize(
    "config",
    [
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 96, "enable_chunked_prefill": False},
        {"long_prefill_token_threshold": 5},
        {"block_size": 1},
        {"block_size": 7},
        {"block_size": 32},
        {"max_num_seqs": 3},
        {"num_blocks": 6},
        {"num_blocks": 6, "enable_admission_control": False},
        {"num_blocks": 6, "enable_admission_control": False, "preemption_mode": "recompute"},
        {"num_blocks": 6, "enable_admission_control": False, "preemption_mode": "swap"},
        {"num_blocks": 6, "enable_admission_control": False, "enable_host_cache": True, "swap_space": 0.01},
        {"num_blocks": 6, "enable_admission_control": False, "preemption_mode": "swap", "enable_prefix_caching": False},
        {"num_blocks": 6, "enable_admission_control": False, "enable_prefix_caching": False},
        {"num_blocks": 6, "enable_admission_control": False, "preemption_victim": "least-waste"},
        {"num_blocks": 44, "block_size": 2, "max_num_batched_tokens": 16, "enable_admission_control": False},
        {"long_prefill_token_threshold": 9, "max_num_partial_prefills": 2, "max_long_partial_prefills": 1},
        {"attention_backend": "reference"},
    ],
    ids=str,
)
def test_output_does_not_depend_on_how_it_is_scheduled(oracle, model_type, config):
    folder, expected = oracle(model_type)
    assert generate_ours(folder, PROMPTS, **config) == expected


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_output_does_not_depend_on_the_order_of_arrival(oracle, model_type):
    folder, expected = oracle(model_type)
    assert generate_ours(folder, PROMPTS[::-1], max_num_seqs=4) == expected[::-1]


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_small_pool_did_preempt_and_small_prompts_did_share(oracle, mode):
    folder, expected = oracle("llama")
    config = EngineConfig(
        model=str(folder), dtype="float32", num_blocks=6, enable_admission_control=False, preemption_mode=mode
    )
    engine = Engine(config)
    completions = engine.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    assert [list(completion.token_ids) for completion in completions] == expected
    stats = engine.stats()
    assert stats.num_preemptions_total > 0
    assert stats.prefix_cache_hits > 0
    assert (stats.tokens_wasted_total > 0) == (mode == "recompute")
    assert (stats.num_swaps_total > 0) == (mode != "recompute")
    assert (stats.num_blocks_to_host_total, stats.num_blocks_from_host_total) > (0, 0) or mode == "recompute"


@pytest.mark.parametrize("num_requests", [1, 40])
def test_identical_prompts_of_whole_blocks_share_all_but_the_last(oracle, num_requests):
    folder, _ = oracle("llama")
    prompt = list(range(10, 42))
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", block_size=16))
    alone = Engine(EngineConfig(model=str(folder), dtype="float32", enable_prefix_caching=False))
    expected = alone.generate([prompt], SamplingParams(temperature=0.0, max_tokens=6))[0].token_ids
    completions = engine.generate([prompt] * num_requests, SamplingParams(temperature=0.0, max_tokens=6))
    assert {completion.token_ids for completion in completions} == {expected}
    assert [completion.num_cached_tokens for completion in completions] == [0] + [16] * (num_requests - 1)


@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_second_run_over_the_same_prompts_takes_them_from_disk_and_says_the_same(oracle, model_type, tmp_path):
    folder, expected = oracle(model_type)
    # With few blocks, too: what does not fit the device comes back from there.
    for num_blocks, is_second in ((None, False), (None, True), (6, True)):
        config = EngineConfig(
            str(folder), dtype="float32", kv_cache_dir=str(tmp_path), num_blocks=num_blocks, swap_space=0.01
        )
        engine = Engine(config)
        completions = engine.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
        engine.scheduler.check()
        assert [list(completion.token_ids) for completion in completions] == expected
        hits = [completion.num_cached_tokens for completion in completions]
        assert (hits == [(len(prompt) - 1) // 16 * 16 for prompt in PROMPTS]) == is_second
        assert ("disk" in engine.stats().prefix_cache_hits_by_tier) == is_second


def test_damaged_files_of_an_earlier_run_change_no_answer(oracle, tmp_path):
    folder, expected = oracle("llama")
    said = []
    for num_expected_lines in (0, 1):
        config = EngineConfig(str(folder), dtype="float32", kv_cache_dir=str(tmp_path), swap_space=0.01)
        engine = Engine(config, said.append)
        completions = engine.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
        assert [list(completion.token_ids) for completion in completions] == expected
        assert len(said) == num_expected_lines
        for path in tmp_path.glob("*/*"):
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
