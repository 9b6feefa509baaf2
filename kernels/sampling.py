"""sample_tokens: the next token of every row from its logits, the most probable one or drawn.

A draw inverts the cumulative distribution, in the order of the vocabulary, at one number a row: so the token depends
on that number and on the logits alone, and is the same, but for rounding, on every device. Gumbel-max (the greatest of
the logits, each with its own noise) would draw others, and needs a random number for each token of the vocabulary. It
needs no sum; but sums of blocks, kept while the maximum is sought, make the inversion a single pass as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infer.kernels.operators import Work, operator

if TYPE_CHECKING:
    import torch

    from infer.kernels.backend import Backend

NUM_DRAW_PARAMETERS = 5


@dataclass(frozen=True, slots=True)
class DrawParameters:
    """How the token of each row is chosen."""

    values: torch.Tensor
    """float64 `[5, num_rows]`, contiguous, where the logits are: temperature, 0 takes the most probable token; min_p;
    top_k, 0 keeps all; top_p; and the number in [0, 1) that decides."""
    draws: bool
    """Whether any row has a temperature."""
    truncates: bool
    """Whether any of these has a min_p, top_k or top_p that leaves tokens out."""


@operator(Work.OTHER)
def sample_tokens(logits: torch.Tensor, parameters: DrawParameters, *, backend: Backend) -> torch.Tensor:
    """int64 `[num_rows]`; -1 where the greatest logit is no finite number, as where any is NaN.

    logits: `[num_rows, vocab_size]` of any float dtype, tokens side by side

    Weights are `exp((logit - greatest) / temperature)` in float32, and what is not above 2e-38 is 0. min_p, top_k and
    top_p, in this order, each leave out what is below a least weight: tokens that tie with the last one kept are kept.
    """
    assert logits.dim() == 2, logits.shape
    assert logits.stride(1) == 1, logits.stride()
    assert parameters.values.shape == (NUM_DRAW_PARAMETERS, len(logits)), (parameters.values.shape, logits.shape)
    assert parameters.values.is_contiguous(), parameters.values.stride()
    return backend.sample_tokens(logits, parameters)
