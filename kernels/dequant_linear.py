"""dequant_linear: a linear layer whose weight stays in the few bits an element that it is stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.operators import Work, operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from infer.kernels.backend import Backend
    from infer.kernels.grouped_weight import GroupedWeight


@operator(Work.GEMM)
def dequant_linear(
    hidden: torch.Tensor,
    weights: Sequence[GroupedWeight],
    bias: torch.Tensor | None = None,
    *,
    backend: Backend,
) -> torch.Tensor:
    """`hidden @ weight.T + bias`, the weight rounded to the dtype of `hidden`.

    hidden: `[..., in_features]`
    weights: as if they were one matrix, the rows of one behind those of another
    bias: of the same dtype, one for each row

    Returns a contiguous tensor `[..., rows of all weights]`.
    """
    assert all(weight.in_features == hidden.shape[-1] for weight in weights), (hidden.shape, weights)
    assert bias is None or bias.dtype == hidden.dtype, (bias, hidden.dtype)
    return backend.dequant_linear(hidden, weights, bias)
