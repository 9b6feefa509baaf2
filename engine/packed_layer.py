"""PackedDecoderLayer: a Llama-like layer as three calls of compiled code, attention the one in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from infer.engine.fused_layer import FusedDecoderLayer
from infer.engine.last_layer import TrimmedLayer
from infer.kernels.linear import linear_kernels, norm_linear, output_and_mlp, why_not_cpu

if TYPE_CHECKING:
    from infer.engine.attention import AttentionContext
    from infer.engine.config import LinearBackend


def pack_layers(model: nn.Module, backend: LinearBackend) -> int:
    """Swap every FusedDecoderLayer whose linear layers our kernels multiply fastest. Returns how many linear layers of
    the fused ones were packed; the old weights are let go."""
    swapped = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if backend != "onednn" and type(child) is FusedDecoderLayer and _can_pack(child):
                swapped += len(_linears(child))
                setattr(parent, name, PackedDecoderLayer(child))
    return swapped


class PackedDecoderLayer(TrimmedLayer):
    """As FusedDecoderLayer, to the last bit what its parts would make one after the other."""

    def __init__(self, layer: FusedDecoderLayer) -> None:
        super().__init__()
        self._kernels = linear_kernels("cpu")
        qkv_proj, o_proj, gate_up_proj, down_proj = _linears(layer)
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm
        self._attend = layer.self_attn.attend
        self._qkv, self._o, self._down = (
            self._kernels.pack(linear.weight, linear.bias) for linear in (qkv_proj, o_proj, down_proj)
        )
        gate, up = gate_up_proj.weight.chunk(2)
        biases = (None, None) if gate_up_proj.bias is None else gate_up_proj.bias.chunk(2)
        self._gate_up = self._kernels.pack_gated(gate, up, *biases)
        if hasattr(layer, "attention_type"):
            # Read by the network around it.
            self.attention_type = layer.attention_type
        # The layer itself goes, its attention stays for what it knows beside its weights.
        del layer.self_attn.qkv_proj, layer.self_attn.o_proj

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_context: AttentionContext,
        **_: Any,
    ) -> torch.Tensor:
        """`[1, num_tokens, hidden_size]`, as transformers calls it."""
        norm = self.input_layernorm
        heads = norm_linear(hidden_states, norm.weight, norm.eps, self._qkv, kernels=self._kernels)
        attended = self._attend(heads, position_embeddings, attention_context)
        return self.finish(attended, hidden_states, attention_context, self._output_and_mlp)

    def _output_and_mlp(self, attended: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        norm = self.post_attention_layernorm
        return output_and_mlp(
            attended, hidden_states, self._o, norm.weight, norm.eps, self._gate_up, self._down, kernels=self._kernels
        )


def _linears(layer: FusedDecoderLayer) -> tuple[Any, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    return attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj


def _can_pack(layer: FusedDecoderLayer) -> bool:
    linears = _linears(layer)
    return all(
        type(linear) is nn.Linear
        and linear.weight.dtype is layer.input_layernorm.weight.dtype
        and why_not_cpu(linear.weight.dtype, linear.in_features) is None
        for linear in linears
    )
