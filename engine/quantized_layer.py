"""QuantizedDecoderLayer: a FusedDecoderLayer whose norms and activation hand on int8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infer.engine.last_layer import TrimmedLayer
from infer.engine.quantized_linear import QuantizedLinear
from infer.kernels.quantized_outputs import quantized_add_rms_norm, quantized_rms_norm, quantized_silu_and_mul

if TYPE_CHECKING:
    import torch

    from infer.engine.attention import AttentionContext
    from infer.engine.fused_layer import FusedDecoderLayer
    from infer.engine.fused_modules import FusedRMSNorm
    from infer.kernels.backend import Backend


class QuantizedDecoderLayer(TrimmedLayer):
    """Gives what the layer it replaces gives, once its linear layers are quantised, to the last bit."""

    def __init__(self, layer: FusedDecoderLayer, backend: Backend) -> None:
        super().__init__()
        self.input_layernorm: FusedRMSNorm = layer.input_layernorm
        self.self_attn: Any = layer.self_attn
        self.post_attention_layernorm: FusedRMSNorm = layer.post_attention_layernorm
        self.gate_up_proj: Any = layer.mlp.gate_up_proj
        self.down_proj: Any = layer.mlp.down_proj
        self._backend = backend
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
        norm, qkv_proj = self.input_layernorm, self.self_attn.qkv_proj
        tokens = quantized_rms_norm(hidden_states, norm.weight, norm.eps, *qkv_proj.wanted, backend=self._backend)
        attended = self.self_attn.attend(qkv_proj(tokens), position_embeddings, attention_context)
        return self.finish(attended, hidden_states, attention_context, self._output_and_mlp)

    def _output_and_mlp(self, attended: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        backend = self._backend
        attended = self.self_attn.o_proj(attended)
        norm, wanted = self.post_attention_layernorm, self.gate_up_proj.wanted
        total, tokens = quantized_add_rms_norm(hidden_states, attended, norm.weight, norm.eps, *wanted, backend=backend)
        gate, up = self.gate_up_proj(tokens).chunk(2, -1)
        activated = quantized_silu_and_mul(gate, up, *self.down_proj.wanted, backend=backend)
        output: torch.Tensor = self.down_proj(activated, total)
        return output


def can_quantize_layer(layer: FusedDecoderLayer) -> bool:
    """Whether its linear layers are quantised."""
    linears = (layer.self_attn.qkv_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj)
    return all(isinstance(linear, QuantizedLinear) for linear in linears)
