"""FusedAttention: projections, rotary embedding and paged attention without the detours of the layer it replaces."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from infer.kernels.rope import rotary_embedding

if TYPE_CHECKING:
    from infer.engine.attention import AttentionCall, AttentionContext
    from infer.kernels.backend import Backend

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class FusedAttention(nn.Module):
    """A self-attention layer as Llama has it: three projections, a rotary embedding over whole heads, attention, a last
    projection. `call` is what the original layer asked its attention for, on any input."""

    def __init__(self, attention: Any, call: AttentionCall, backend: Backend) -> None:
        super().__init__()
        self.q_proj: nn.Module = attention.q_proj
        self.k_proj: nn.Module = attention.k_proj
        self.v_proj: nn.Module = attention.v_proj
        self.o_proj: nn.Module = attention.o_proj
        self._call = call
        self._head_dim = call.query.shape[2]
        self._backend = backend

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_context: AttentionContext,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """`[1, num_tokens, hidden_size]`, as transformers calls it."""
        cos, sin = (angles[0] for angles in position_embeddings)
        query, key, value = (
            projection(hidden_states)[0].unflatten(-1, (-1, self._head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        call = replace(
            self._call,
            query=rotary_embedding(query, cos, sin, backend=self._backend),
            key=rotary_embedding(key, cos, sin, backend=self._backend),
            value=value,
        )
        output: torch.Tensor = self.o_proj(attention_context.attend(call, {}).flatten(1)[None])
        return output, None


@torch.inference_mode()
def fuse_attention(attention: Any, backend: Backend) -> FusedAttention | None:
    """What `attention` can be swapped for; None where it is no such layer. A random input tells: both must ask for the
    same attention, and make the same of its result."""
    if not all(isinstance(getattr(attention, name, None), nn.Linear) for name in _PROJECTIONS):
        return None
    head_dim = getattr(attention, "head_dim", None)
    if not isinstance(head_dim, int) or head_dim % 32 or not hasattr(attention, "layer_idx"):
        return None
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 3, attention.q_proj.in_features, generator=generator).bfloat16()
    cos, sin = torch.randn(2, 1, 3, head_dim, generator=generator).bfloat16()
    inputs = {"hidden_states": hidden, "position_embeddings": (cos, sin), "attention_mask": None}
    recorder = _Recorder()
    try:
        expected = attention(**inputs, attention_context=recorder)[0]
    except (TypeError, ValueError, RuntimeError):
        # It wants other arguments, or embeddings of another size.
        return None
    if recorder.call is None or recorder.unknown:
        return None
    call = recorder.call
    fused = FusedAttention(attention, replace(call), backend)
    output = fused(**inputs, attention_context=recorder)[0]
    same = [(expected, output)]
    same += [(getattr(call, name), getattr(recorder.call, name)) for name in ("query", "key", "value")]
    return fused if all(_is_close(before, after) for before, after in same) else None


class _Recorder:
    """An attention that gives back the values of each head's group, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.call: AttentionCall | None = None
        self.unknown: dict[str, Any] = {}

    def attend(self, call: AttentionCall, unknown: dict[str, Any]) -> torch.Tensor:
        self.call = call
        self.unknown = {name: value for name, value in unknown.items() if value is not None and value is not False}
        return call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], 1)


def _is_close(before: torch.Tensor, after: torch.Tensor) -> bool:
    return before.shape == after.shape and torch.allclose(before.float(), after.float(), rtol=2**-6, atol=2**-5)
