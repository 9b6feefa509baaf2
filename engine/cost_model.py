"""What a step costs, predicted from what it computes and what it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infer.engine.dequant_modules import count_weights

if TYPE_CHECKING:
    import torch

    from infer.engine.kv_cache import KVCacheSpec


@dataclass(frozen=True, slots=True)
class CostModel:
    """A roofline (Williams, Waterman, Patterson 2009) of the linear layers, with the reads of the cache on top.

    Attention is not counted in operations: at the sizes of a decode step it is bound by what it reads.
    """

    num_parameters: int
    bytes_per_parameter: float
    bytes_per_cached_token: int
    """Keys and values of a token in all layers."""
    flops: float
    """Floating-point operations a second that the linear layers reach."""
    bandwidth: float
    """Bytes a second that are read."""
    bus_bandwidth: float
    """Bytes a second that are copied between the device and host memory."""
    seconds_per_step: float
    """What a step costs besides."""

    def step_seconds(self, num_tokens: int, num_read_tokens: int) -> float:
        """A step over `num_tokens` tokens whose queries read `num_read_tokens` tokens of the cache in all."""
        computing = 2 * self.num_parameters * num_tokens / self.flops
        reading_weights = self.num_parameters * self.bytes_per_parameter / self.bandwidth
        reading_cache = num_read_tokens * self.bytes_per_cached_token / self.bandwidth
        return max(computing, reading_weights) + reading_cache + self.seconds_per_step

    def copy_seconds(self, num_tokens: int) -> float:
        """Keys and values of so many tokens, to host memory or back."""
        return num_tokens * self.bytes_per_cached_token / self.bus_bandwidth

    def recompute_seconds(self, num_tokens: int) -> float:
        """What so many tokens add to a step that reads the weights anyway."""
        return 2 * self.num_parameters * num_tokens / self.flops


_TYPICAL = {"cpu": (400e9, 32e9, 8e9), "cuda": (400e12, 3e12, 20e9)}
"""Operations a second, bytes a second read, bytes a second copied: two cores, or a GPU on PCIe."""


def typical_costs(device_type: str, model: torch.nn.Module, spec: KVCacheSpec) -> CostModel:
    """Of a model on a machine of which no more is known: enough to tell what is cheaper by a multiple."""
    flops, bandwidth, bus_bandwidth = _TYPICAL.get(device_type, _TYPICAL["cpu"])
    num_parameters = count_weights(model)
    return CostModel(
        num_parameters=num_parameters,
        bytes_per_parameter=sum(parameter.nbytes for parameter in model.parameters()) / num_parameters,
        bytes_per_cached_token=spec.num_bytes_per_block // spec.block_size,
        flops=flops,
        bandwidth=bandwidth,
        bus_bandwidth=bus_bandwidth,
        seconds_per_step=0.0,
    )
