"""EngineConfig refuses what cannot work, and says what would."""

from __future__ import annotations

import pytest

from infer.engine.config import EngineConfig
from infer.engine.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1: 0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens must be at least 1: -1"),
        ({"block_size": 0}, "block_size must be at least 1: 0"),
        ({"num_blocks": 0}, "num_blocks must be at least 1: 0"),
        ({"max_model_len": 0}, "max_model_len must be at least 1: 0"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be at least 1: 0"),
        ({"max_num_draft_tokens": 0}, "max_num_draft_tokens must be at least 1: 0"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min must be at least 1: 0"),
        (
            {"prompt_lookup_min": 3, "prompt_lookup_max": 2},
            "prompt_lookup_max must be at least prompt_lookup_min, 3: 2",
        ),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must not be negative: -1"),
        ({"memory_utilization": 0.0}, "memory_utilization must be above 0 and at most 1: 0.0"),
        ({"memory_utilization": 1.1}, "memory_utilization must be above 0 and at most 1: 1.1"),
        ({"swap_space": -0.5}, "swap_space must not be negative: -0.5"),
        ({"swap_space": float("nan")}, "swap_space must not be negative: nan"),
        ({"swap_space": 0.0, "preemption_mode": "swap"}, "preemption_mode swap needs swap_space"),
        ({"swap_space": 0.0, "kv_cache_dir": "d"}, "kv_cache_dir needs swap_space: prefixes pass through it"),
        ({"enable_prefix_caching": False, "enable_host_cache": True}, "enable_host_cache needs prefix caching"),
        ({"kv_cache_dir": ""}, "kv_cache_dir names no directory"),
        ({"kv_cache_dir_size": 0.0}, "kv_cache_dir_size must be above 0: 0.0"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 64, "max_model_len": 65},
            "max_num_batched_tokens must be at least max_model_len without chunked prefill: 64 < 65",
        ),
    ],
)
def test_config_that_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError) as refused:
        EngineConfig(**settings)
    assert str(refused.value) == message


def test_default_config_is_allowed():
    assert EngineConfig().max_num_seqs == 256
