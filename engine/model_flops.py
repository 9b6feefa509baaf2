"""Operations that a network needs by its configuration, whatever it is made to run as.

Counted on a copy without weights (torch's meta device) as transformers builds it, so that neither swapped modules nor
weights in another layout change the figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from infer.engine.attention import ATTENTION_NAME, register

if TYPE_CHECKING:
    from infer.engine.attention import AttentionCall

_NUM_TOKENS = 64
"""Enough for the parts that do not grow with them to vanish."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One layer's attention."""

    num_heads: int
    head_dim: int
    value_head_dim: int
    sliding_window: int
    """0 is none."""

    @property
    def flops_per_key(self) -> int:
        """Of one query over one key and its value, in all heads."""
        return 2 * self.num_heads * (self.head_dim + self.value_head_dim)


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """A multiplication and an addition are two operations."""

    per_token: float
    """Products with weights for a token that enters the network."""
    per_logit: float
    """Those that a token needs on top, where its logits are asked for."""
    layers: tuple[AttentionShape, ...]


class _ShapeRecorder:
    """An attention that computes nothing."""

    def __init__(self) -> None:
        self.layers: dict[int, AttentionShape] = {}

    def attend(self, call: AttentionCall, unknown: dict[str, Any]) -> torch.Tensor:
        num_heads, head_dim = call.query.shape[1:]
        value_head_dim = call.value.shape[2]
        self.layers[call.layer_idx] = AttentionShape(num_heads, head_dim, value_head_dim, call.sliding_window)
        return call.query.new_zeros(*call.query.shape[:2], value_head_dim)


def count_model_flops(config: Any) -> ModelFlops:
    """Of a model that transformers can build from its `config`."""
    register()
    with torch.device("meta"):
        # bfloat16, which torch's products of experts are made for.
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=ATTENTION_NAME, dtype=torch.bfloat16
        ).eval()
        tokens = torch.zeros(1, _NUM_TOKENS, dtype=torch.long)
        # Nobody reads it; without one transformers looks into the positions, which have no values here.
        mask = torch.zeros(1, 1, _NUM_TOKENS, _NUM_TOKENS)
    recorder = _ShapeRecorder()
    counted = []
    for num_logits in (1, _NUM_TOKENS):
        counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: _grouped_mm_flops})
        with torch.inference_mode(), counter:
            model(
                input_ids=tokens,
                attention_mask=mask,
                use_cache=False,
                logits_to_keep=num_logits,
                attention_context=recorder,
            )
        counted.append(counter.get_total_flops())
    per_logit = (counted[1] - counted[0]) / (_NUM_TOKENS - 1)
    layers = tuple(shape for _, shape in sorted(recorder.layers.items()))
    return ModelFlops((counted[0] - per_logit) / _NUM_TOKENS, per_logit, layers)


def _grouped_mm_flops(rows: torch.Size, weights: torch.Size, *_: Any, **__: Any) -> int:
    """`[num_rows, in]`, each row by one of `[num_experts, in, out]`: a row comes once for each expert it goes to."""
    return 2 * rows[0] * rows[1] * weights[-1]
