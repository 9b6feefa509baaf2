"""The last layer, behind its attention, for those tokens alone of which it is read: the others have left their keys and
values, and that is all that is wanted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from infer.engine.attention import AttentionContext

    Finish = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_WORTH_IT = 2
"""Copying rows out and in pays where at most one of so many is wanted."""


class TrimmedLayer(nn.Module):
    """A decoder layer that may be the last one. What follows must look at each token alone, as norm and head do."""

    is_last = False

    def finish(
        self,
        attended: torch.Tensor,
        hidden_states: torch.Tensor,
        attention_context: AttentionContext,
        finish: Finish,
    ) -> torch.Tensor:
        """`finish(attended, hidden_states)`, both `[1, num_tokens, ...]`; of the last layer only where it is read."""
        wanted = attention_context.logits_indices
        if not self.is_last or wanted is None or len(wanted) * _WORTH_IT > hidden_states.shape[1]:
            return finish(attended, hidden_states)
        return hidden_states.index_copy(1, wanted, finish(attended[:, wanted], hidden_states[:, wanted]))


def mark_last_layer(model: nn.Module) -> bool:
    """Tell the last decoder layer of `model` that it is, where it is one of ours. Returns whether it was."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) and isinstance(module[-1], TrimmedLayer):
            module[-1].is_last = True
            return True
    return False
