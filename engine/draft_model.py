"""A smaller model of the same vocabulary, loaded and prepared as the model itself is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from infer.engine.errors import ConfigError
from infer.engine.network import load_network

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from infer.engine.config import EngineConfig
    from infer.engine.kv_cache import KVCacheSpec
    from infer.engine.network import Network


def load_draft_model(
    config: EngineConfig, device: torch.device, vocabulary: Mapping[str, int], report: Callable[[str], None]
) -> Network | None:
    """Load the speculative model of `config`, where one is asked for.

    Raises:
        ConfigError: its tokens are not those of `vocabulary`.
        ModelError: it cannot be found, read or run exactly.
    """
    name = config.speculative_model
    if name is None or config.speculative == "off":
        return None
    # Its cache does not outlast the run.
    network = load_network(name, replace(config, kv_cache_dir=None), device, report)
    if network.loaded.tokenizer.get_vocab() != vocabulary:
        raise ConfigError(
            f"speculative_model has other tokens than the model: {name}",
            hint="use a smaller model of the same family, or leave --speculative-model out",
        )
    return network


def spec_of_both(spec: KVCacheSpec, draft_model: Network | None) -> KVCacheSpec:
    """What a block takes where the speculative model, too, has one for each."""
    return spec if draft_model is None else replace(spec, layers=(*spec.layers, *draft_model.cache_spec.layers))
