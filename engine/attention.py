"""The bridge between transformers' attention interface and our kernels.

Every attention layer of the network calls `_attend`, which hands the call to the `AttentionContext` that comes with the
forward pass as an argument; a layer that was swapped for ours hands it over itself. `AttentionProbe` learns what the
layers need, once at load; `PagedAttention` serves a step from the KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import AttentionInterface

from infer.engine.errors import ModelError
from infer.kernels.paged_attention import paged_attention
from infer.kernels.rotary_store_kv import rotary_store_kv
from infer.kernels.store_kv import store_kv

if TYPE_CHECKING:
    from infer.engine.kv_cache import KVCache
    from infer.kernels.attention_metadata import AttentionMetadata
    from infer.kernels.head_norms import HeadNorms

ATTENTION_NAME = "infer"

_HARMLESS = frozenset(
    {"attention_context", "cache_position", "dropout", "is_causal", "layer_idx", "output_attentions",
     "output_hidden_states", "output_router_logits", "position_ids", "return_dict", "use_cache"}
)  # fmt: skip
"""Arguments a layer may pass that do not change what attention computes in a causal, inference-only step."""


@dataclass(slots=True)
class AttentionCall:
    """One layer's attention over the step's flat batch, as the network asks for it."""

    layer_idx: int
    query: torch.Tensor
    """`[num_tokens, num_heads, head_dim]`"""
    key: torch.Tensor
    """`[num_tokens, num_kv_heads, head_dim]`"""
    value: torch.Tensor
    """`[num_tokens, num_kv_heads, value_head_dim]`"""
    scale: float
    sliding_window: int
    softcap: float
    sinks: torch.Tensor | None
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None
    """Cosines and sines, `[num_tokens, head_dim]` each, by which query and key have yet to be turned."""
    norms: HeadNorms | None = None
    """By which they have yet to be normed before."""


class AttentionContext(Protocol):
    """What a forward pass is given to answer its layers' attention calls."""

    @property
    def logits_indices(self) -> torch.Tensor | None:
        """int64: the tokens of which alone the last layer's output is read; None where all may be."""
        ...

    def attend(self, call: AttentionCall, unknown: dict[str, Any]) -> torch.Tensor:
        """Returns `[num_tokens, num_heads, value_head_dim]`. `unknown` are arguments no kernel of ours honours."""
        ...


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Serves one step: stores its keys and values, then attends over the blocks."""

    kv_cache: KVCache
    metadata: AttentionMetadata
    logits_indices: torch.Tensor | None = None

    def attend(self, call: AttentionCall, unknown: dict[str, Any]) -> torch.Tensor:
        pages = self.kv_cache.layers[call.layer_idx]
        backend = self.kv_cache.backend
        slot_mapping = self.metadata.slot_mapping
        query = call.query
        if call.rotary is None:
            store_kv(call.key, call.value, pages, slot_mapping, backend=backend)
        else:
            query = rotary_store_kv(
                query, call.key, call.value, *call.rotary, pages, slot_mapping, call.norms, backend=backend
            )
        return paged_attention(
            query,
            pages,
            self.metadata,
            scale=call.scale,
            sliding_window=call.sliding_window,
            softcap=call.softcap,
            sinks=call.sinks,
            backend=backend,
        )


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one attention layer keeps in the cache, and how far back it looks (0: everything)."""

    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    sliding_window: int


class AttentionProbe:
    """Learns the layers' shapes from one forward pass, and finds what our kernels would not honour."""

    logits_indices = None

    def __init__(self) -> None:
        self.layers: dict[int, LayerSpec] = {}
        self.unknown: set[str] = set()

    def attend(self, call: AttentionCall, unknown: dict[str, Any]) -> torch.Tensor:
        num_kv_heads, head_dim = call.key.shape[1:]
        value_head_dim = call.value.shape[2]
        self.layers[call.layer_idx] = LayerSpec(num_kv_heads, head_dim, value_head_dim, call.sliding_window)
        self.unknown |= unknown.keys()
        return call.query.new_zeros(*call.query.shape[:2], value_head_dim)


def probe_layers(model: torch.nn.Module, config: Any) -> list[LayerSpec]:
    """The attention layers of `model`, in order, from a forward pass over two tokens.

    Raises:
        ModelError: some layer did not reach our attention, or asks it for something it does not do.
    """
    probe = AttentionProbe()
    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    architecture = config.model_type
    try:
        with torch.inference_mode():
            model(input_ids=tokens, position_ids=torch.arange(2, device=tokens.device)[None], use_cache=False,
                  attention_context=probe)  # fmt: skip
    except (ModelError, TypeError) as error:
        # A TypeError: some forward takes no further arguments.
        raise ModelError(f"architecture {architecture} cannot be run exactly: {error}") from error
    num_layers = config.num_hidden_layers
    if sorted(probe.layers) != list(range(num_layers)):
        missing = sorted(set(range(num_layers)) - set(probe.layers))
        raise ModelError(f"architecture {architecture} cannot be run exactly: {_without_attention(model, missing)}")
    if probe.unknown:
        raise ModelError(
            f"architecture {architecture} cannot be run exactly: its attention takes {', '.join(sorted(probe.unknown))}"
        )
    layers = [probe.layers[index] for index in range(num_layers)]
    for index, kind in enumerate(getattr(config, "layer_types", None) or []):
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelError(f"architecture {architecture} cannot be run exactly: layer {index} is {kind}")
        if (kind == "sliding_attention") != (layers[index].sliding_window > 0):
            raise ModelError(
                f"architecture {architecture} cannot be run exactly: layer {index} is {kind}, but its attention was "
                f"given a window of {layers[index].sliding_window}"
            )
    return layers


def _without_attention(model: torch.nn.Module, layers: list[int]) -> str:
    """Why layers that did not reach our attention cannot be run."""
    modules = [module for module in model.modules() if getattr(module, "layer_idx", None) in layers]
    # A block, too, can know its place; what it is made of tells more.
    mixers = [each for each in modules if not any(child in modules for child in each.modules() if child is not each)]
    kinds = ", ".join(dict.fromkeys(type(module).__name__ for module in mixers)) or "unknown"
    shown = ", ".join(map(str, layers[:8])) + (", ..." if len(layers) > 8 else "")
    return f"no standard attention in layers {shown} ({kinds}): a state they keep is not in the kv cache"


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    attention_context: AttentionContext | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Called by transformers with `[1, num_heads, num_tokens, head_dim]`; returns `[1, num_tokens, num_heads, ...]`."""
    if attention_context is None:
        raise ModelError("its layers do not pass the step's metadata on to their attention")
    if getattr(module, "is_causal", True) is False:
        raise ModelError("its attention is not causal")
    call = AttentionCall(
        module.layer_idx,  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling if scaling is not None else query.shape[-1] ** -0.5,
        sliding_window or 0,
        softcap or 0.0,
        s_aux,
    )
    asked = {name: value for name, value in kwargs.items() if value is not None and value is not False}
    unknown = {name: value for name, value in asked.items() if name not in _HARMLESS}
    return attention_context.attend(call, unknown)[None], None


def register() -> None:
    """Make `attn_implementation="infer"` known to transformers. The mask is the kernels' own business: to an attention
    that has no function for masks transformers gives none, without looking at the positions, for which it would have to
    wait for the device."""
    AttentionInterface.register(ATTENTION_NAME, _attend)
