"""FusedDecoderLayer: a whole layer of a Llama-like network without the detours between its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from infer.engine.fused_attention import FusedAttention
from infer.engine.fused_modules import FusedGatedMLP, FusedRMSNorm
from infer.engine.probing import AttentionRecorder, is_close, output_of, random_angles, random_hidden

if TYPE_CHECKING:
    from infer.engine.attention import AttentionContext

_PARTS = {
    "input_layernorm": FusedRMSNorm,
    "self_attn": FusedAttention,
    "post_attention_layernorm": FusedRMSNorm,
    "mlp": FusedGatedMLP,
}


class FusedDecoderLayer(nn.Module):
    """Attention and feed-forward layer, each behind a norm and added to what it was given; the first addition and the
    second norm are one kernel."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.input_layernorm: FusedRMSNorm = layer.input_layernorm
        self.self_attn: FusedAttention = layer.self_attn
        self.post_attention_layernorm: FusedRMSNorm = layer.post_attention_layernorm
        self.mlp: FusedGatedMLP = layer.mlp
        if hasattr(layer, "attention_type"):
            # Read by the network around it.
            self.attention_type = layer.attention_type

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_context: AttentionContext,
        **_: Any,
    ) -> torch.Tensor:
        """`[1, num_tokens, hidden_size]`, as transformers calls it."""
        attended, _weights = self.self_attn(self.input_layernorm(hidden_states), position_embeddings, attention_context)
        hidden_states, normalised = self.post_attention_layernorm.add(hidden_states, attended)
        output: torch.Tensor = hidden_states + self.mlp(normalised)
        return output


@torch.inference_mode()
def fuse_layer(layer: Any) -> FusedDecoderLayer | None:
    """What `layer` can be swapped for once its parts are; None where it is no such layer, as a random input tells."""
    parts = dict(layer.named_children())
    if {name: type(part) for name, part in parts.items()} != _PARTS:
        return None
    fused = FusedDecoderLayer(layer)
    weight = layer.input_layernorm.weight
    hidden = random_hidden(weight.shape[0], weight.dtype, weight.device)
    angles = random_angles(layer.self_attn.head_dim, weight.dtype, weight.device)
    inputs = {"position_embeddings": angles, "attention_mask": None}
    before = output_of(layer, hidden, **inputs, attention_context=AttentionRecorder())
    after = fused(hidden, **inputs, attention_context=AttentionRecorder())
    return fused if is_close(before, after) else None
