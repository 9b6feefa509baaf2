"""The name of a cache's content: the same for the same, another for whatever changes a block."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import make_config, make_model

from infer.engine.config import EngineConfig
from infer.engine.kv_cache import KVCache
from infer.engine.kv_identity import kv_identity, weights_digest
from infer.kernels.backend import select_backend
from infer.kernels.kv_pages import KVPages

CONFIG = EngineConfig()


def make_cache(head_dim=8, dtype=torch.float32, name="reference"):
    backend = select_backend(torch.device("cpu"), torch.float32, head_dim=32, block_size=16, preferred=name)
    pages = torch.zeros(2, 3, 1, head_dim, dtype=dtype)
    return KVCache((KVPages(pages, pages),), backend)


def identity(config=None, weights="w", cache=None, **model):
    settings = replace(CONFIG, **(config or {}))
    return kv_identity(settings, make_config("llama", **model), weights, make_cache(**(cache or {})))


def test_same_settings_give_the_same_name():
    assert identity() == identity()
    assert identity({"num_blocks": 7, "max_num_seqs": 3, "kv_cache_dir": "d"}) == identity()


def test_place_of_the_model_does_not_matter():
    assert identity(_name_or_path="here") == identity(_name_or_path="there")


@pytest.mark.parametrize(
    "other",
    [
        {"weights": "v"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
        {"num_attention_heads": 8},
        {"config": {"block_size": 32}},
        {"config": {"fuse_kernels": False}},
        {"config": {"prepack_linears": False}},
        {"config": {"shared_prefix_attention": False}},
        {"config": {"linear_backend": "onednn"}},
        {"config": {"quantization": "int8"}},
        {"cache": {"head_dim": 16}},
        {"cache": {"dtype": torch.float16}},
        {"cache": {"dtype": torch.int8}},
        {"cache": {"name": "cpu"}},
    ],
    ids=str,
)
def test_whatever_changes_a_block_gives_another_name(other):
    assert identity(**other) != identity()


def test_digest_of_weights_is_that_of_every_byte():
    model = make_model("llama")
    digest = weights_digest(model)
    assert weights_digest(make_model("llama")) == digest
    assert weights_digest(make_model("llama").bfloat16()) != digest
    with torch.no_grad():
        # Two that change places.
        model.lm_head.weight[[0, 1]] = model.lm_head.weight[[1, 0]].clone()
    assert weights_digest(model) != digest
