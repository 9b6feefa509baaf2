"""How much of the memory goes to the cache, and how much to the swap space."""

from __future__ import annotations

import pytest
import torch

from infer.engine.attention import LayerSpec
from infer.engine.config import EngineConfig
from infer.engine.errors import ConfigError
from infer.engine.fitting import fit_cache_sizes
from infer.engine.kv_cache import KVCacheSpec

GIB = 1 << 30


@pytest.fixture
def sizes(monkeypatch):
    """Of the cache and of the swap space, in GiB. Ten are available, two of them for a step; a request may take one."""
    spec = KVCacheSpec((LayerSpec(64, 256, 256, 0),), 16, torch.float16)

    def fit(device="cpu", num_requests=None, **config):
        monkeypatch.setattr("infer.engine.fitting.available_bytes", lambda _: 10 * GIB)
        num_blocks, num_host_blocks = fit_cache_sizes(
            EngineConfig(memory_utilization=1.0, max_num_seqs=64, **config),
            spec,
            torch.device(device),
            num_reserved_bytes=0,
            num_step_bytes=2 * GIB,
            max_model_len=16 * 1024,
            num_requests=num_requests,
            max_request_tokens=16 * 1024,
        )
        return tuple(count * spec.num_bytes_per_block / GIB for count in (num_blocks, num_host_blocks))

    return fit


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (8, 0)),
        ({"num_requests": 3}, (3, 4)),
        ({"num_requests": 5}, (5, 3)),
        ({"num_blocks": 512}, (0.5, 2)),
        ({"num_requests": 3, "preemption_mode": "recompute"}, (3, 0)),
        ({"num_requests": 3, "swap_space": 0.0}, (3, 0)),
        ({"swap_space": 2.0}, (6, 2)),
        ({"swap_space": 2.0, "preemption_mode": "recompute"}, (6, 2)),
        ({"enable_host_cache": True}, (7, 1)),
        ({"kv_cache_dir": "d"}, (7, 1)),
        ({"device": "cuda"}, (8, 1.25)),
        ({"device": "cuda", "swap_space": 3.0}, (8, 3)),
    ],
    ids=str,
)
def test_swap_space_is_what_was_asked_for_or_what_the_cache_leaves(sizes, settings, expected):
    assert sizes(**settings) == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_swap_space_that_does_not_fit_is_refused(sizes, device):
    with pytest.raises(ConfigError, match=r"no memory for the swap space: 11.0 GiB are asked for"):
        sizes(device, swap_space=11.0)
