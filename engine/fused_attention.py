"""FusedAttention: projections, rotary embedding and paged attention without the detours of the layer it replaces."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from infer.engine.attention import AttentionCall
from infer.engine.fused_modules import norm_eps
from infer.engine.prepack import can_merge, linear_dtype, merge
from infer.engine.probing import AttentionRecorder, is_close, output_of, random_angles, random_hidden
from infer.kernels.head_norms import HeadNorms

if TYPE_CHECKING:
    from infer.engine.attention import AttentionContext


class FusedAttention(nn.Module):
    """A self-attention layer as Llama and Qwen3 have it: projections of one size of heads, perhaps norms of these, a
    rotary embedding over whole heads, attention, a last projection. `call` is what the original layer asked its
    attention for, on any input."""

    def __init__(self, attention: Any, call: AttentionCall, norms: HeadNorms | None) -> None:
        super().__init__()
        self.qkv_proj: nn.Module = merge([attention.q_proj, attention.k_proj, attention.v_proj])
        self.o_proj: nn.Module = attention.o_proj
        self.hidden_size: int = attention.q_proj.in_features
        self.head_dim: int = call.query.shape[2]
        self._num_heads = [tensor.shape[1] for tensor in (call.query, call.key, call.value)]
        self._norms = norms
        self._layer_idx = call.layer_idx
        self._rest = (call.scale, call.sliding_window, call.softcap, call.sinks)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_context: AttentionContext,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """`[1, num_tokens, hidden_size]`, as transformers calls it."""
        output: torch.Tensor = self.o_proj(
            self.attend(self.qkv_proj(hidden_states), position_embeddings, attention_context)
        )
        return output, None

    def attend(
        self,
        projected: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_context: AttentionContext,
    ) -> torch.Tensor:
        """What lies between the projections: `[1, num_tokens, ...]`, of `qkv_proj` and for `o_proj`."""
        num_tokens = projected.shape[1]
        heads = projected.view(num_tokens, -1, self.head_dim)
        query, key, value = torch.split_with_sizes(heads, self._num_heads, 1)
        cos, sin = position_embeddings
        call = AttentionCall(self._layer_idx, query, key, value, *self._rest, (cos[0], sin[0]), self._norms)
        return attention_context.attend(call, {}).view(1, num_tokens, -1)


@torch.inference_mode()
def fuse_attention(attention: Any) -> FusedAttention | None:
    """What `attention` can be swapped for; None where it is no such layer. A random input tells: both must ask for the
    same attention, and make the same of its result."""
    head_dim = getattr(attention, "head_dim", None)
    if not isinstance(head_dim, int) or head_dim % 32 or not hasattr(attention, "layer_idx"):
        return None
    if not can_merge([attention.q_proj, attention.k_proj, attention.v_proj]):
        return None
    hidden_size, dtype = attention.q_proj.in_features, linear_dtype(attention.q_proj)
    device = next(chain(attention.parameters(), attention.buffers())).device
    inputs = (random_hidden(hidden_size, dtype, device), random_angles(head_dim, dtype, device))
    asked, answer = AttentionRecorder(), AttentionRecorder()
    expected = output_of(attention, *inputs, attention_mask=None, attention_context=asked)
    call = asked.call
    if not isinstance(expected, tuple) or call is None or asked.unknown or call.value.shape != call.key.shape:
        return None
    fused = FusedAttention(attention, call, _head_norms(attention, head_dim))
    pairs = [(expected[0], fused(*inputs, attention_context=answer)[0])]
    assert answer.call is not None
    pairs += [(getattr(call, name), getattr(answer.call, name)) for name in ("query", "key", "value")]
    return fused if all(is_close(before, after) for before, after in pairs) else None


def _head_norms(attention: Any, head_dim: int) -> HeadNorms | None:
    """Those that its names promise."""
    parts = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    weights = [getattr(part, "weight", None) for part in parts]
    eps = norm_eps(parts[0])
    if eps is None or eps != norm_eps(parts[1]):
        return None
    query_weight, key_weight = weights
    for weight in weights:
        if not isinstance(weight, torch.Tensor) or weight.shape != (head_dim,):
            return None
        if weight.dtype != linear_dtype(attention.q_proj):
            return None
    assert isinstance(query_weight, torch.Tensor)
    assert isinstance(key_weight, torch.Tensor)
    return HeadNorms(query_weight.detach().contiguous(), key_weight.detach().contiguous(), eps)
