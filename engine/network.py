"""A model made ready for steps: probed, its layers swapped for faster ones, with what its cache must be like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infer.engine.attention import ATTENTION_NAME, probe_layers, register
from infer.engine.batch import build_batch
from infer.engine.cost_model import typical_costs
from infer.engine.fitting import choose_backend
from infer.engine.fusion import fuse_kernels
from infer.engine.kv_cache import KVCacheSpec, allocate_kv_cache
from infer.engine.kv_cache_manager import KVCacheManager
from infer.engine.kv_identity import weights_digest
from infer.engine.last_layer import mark_last_layer
from infer.engine.model_dtype import dtype_name
from infer.engine.model_loader import load_model
from infer.engine.model_runner import ModelRunner
from infer.engine.packed_layer import pack_layers
from infer.engine.prepack import prepack_linears
from infer.engine.quantization import pack_int8_linears, quantize_linears
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams
from infer.engine.scheduler import Scheduler
from infer.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from infer.engine.config import EngineConfig
    from infer.engine.cost_model import CostModel
    from infer.engine.kv_cache import KVCache
    from infer.engine.model_loader import LoadedModel
    from infer.engine.quantization import QuantizedPart
    from infer.kernels.backend import Backend


@dataclass(frozen=True, slots=True)
class Network:
    """A loaded model and how it is run."""

    loaded: LoadedModel
    device: torch.device
    cache_spec: KVCacheSpec
    backend: Backend
    num_fused_kernels: int
    num_prepacked_linears: int
    quantized: QuantizedPart | None
    """None where nothing was to be quantised."""
    cost_model: CostModel
    weights_digest: str
    """Of the weights as they were loaded; empty where nothing outlasts the run."""

    @property
    def model(self) -> torch.nn.Module:
        return self.loaded.model

    @property
    def config(self) -> Any:
        """transformers' config of the model."""
        return self.loaded.config

    def identity(self) -> dict[str, str]:
        """What may round differently elsewhere."""
        layers = f"{self.num_fused_kernels} fused, {self.num_prepacked_linears} prepacked"
        return {
            "dtype of the model": dtype_name(self.loaded.dtype),
            "device": self.device.type,
            "kernels": f"{self.backend.name}, {layers}",
        }

    def allocate_kv_cache(self, num_blocks: int) -> KVCache:
        """Zero-filled, with so many usable blocks."""
        return allocate_kv_cache(self.cache_spec, num_blocks, self.backend, self.device)

    def warm_up(self, config: EngineConfig) -> torch.Tensor:
        """Run one token through it: what is compiled at first use is part of loading, not of the run. Returns its
        logits, [1, vocab_size]."""
        scheduler = Scheduler(config, KVCacheManager(1, config.block_size, enable_prefix_caching=False))
        scheduler.add(Sequence(Request(0, (0,), SamplingParams())))
        runner = ModelRunner(self.model, self.allocate_kv_cache(1))
        return runner.execute(build_batch(scheduler.schedule(), config.block_size, self.device))


def load_network(
    name: str,
    config: EngineConfig,
    device: torch.device,
    report: Callable[[str], None],
    revision: str | None = None,
    on_weights: Callable[[int], None] = lambda num_bytes: None,
) -> Network:
    """Load the model that `name` stands for, as `config` says. `report` is told what takes long, `on_weights` how many
    bytes of weights are about to be read.

    Raises:
        ModelError: it cannot be found, read or run exactly.
        ConfigError: a setting that cannot work with it.
    """
    register()
    loaded = load_model(
        name,
        revision=revision,
        dtype=config.dtype,
        quantization=config.quantization,
        device=device,
        attn_implementation=ATTENTION_NAME,
        report=report,
        on_weights=on_weights,
    )
    layers = tuple(probe_layers(loaded.model, loaded.config))
    spec = KVCacheSpec(layers, config.block_size, loaded.dtype, config.kv_cache_dtype)
    backend = choose_backend(config, device, spec)
    # Of the weights as they are, before some are laid out anew.
    costs = typical_costs(device.type, loaded.model, spec)
    digest = weights_digest(loaded.model) if config.kv_cache_dir is not None else ""
    # Kernels first: they are recognised by the layers as transformers made them.
    num_fused_kernels = fuse_kernels(loaded.model, backend) if config.fuse_kernels else 0
    quantized = None
    if config.quantization == "int8":
        quantized = quantize_linears(loaded.model, backend, device, loaded.dtype)
    elif config.quantization == "auto":
        pack_int8_linears(loaded.model)
    num_prepacked_linears = 0
    if config.prepack_linears:
        num_prepacked_linears = pack_layers(loaded.model, config.linear_backend)
        num_prepacked_linears += prepack_linears(loaded.model, config.linear_backend)
    if config.fuse_kernels:
        mark_last_layer(loaded.model)
    return Network(loaded, device, spec, backend, num_fused_kernels, num_prepacked_linears, quantized, costs, digest)
