"""What a step costs, predicted from what it computes and what it reads."""

from __future__ import annotations

from dataclasses import dataclass


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
    seconds_per_step: float
    """What a step costs besides."""

    def step_seconds(self, num_tokens: int, num_read_tokens: int) -> float:
        """A step over `num_tokens` tokens whose queries read `num_read_tokens` tokens of the cache in all."""
        computing = 2 * self.num_parameters * num_tokens / self.flops
        reading_weights = self.num_parameters * self.bytes_per_parameter / self.bandwidth
        reading_cache = num_read_tokens * self.bytes_per_cached_token / self.bandwidth
        return max(computing, reading_weights) + reading_cache + self.seconds_per_step
