"""norm_linear and output_and_mlp on a CPU: what they compute is said in `infer.kernels.linear`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infer.kernels.cpu.chain import norm_step, product_step, run_chain
from infer.kernels.cpu.linear_block import Epilogue

if TYPE_CHECKING:
    from infer.kernels.cpu.panels import Panels


def norm_linear(hidden: torch.Tensor, weight: torch.Tensor, eps: float, panels: Panels) -> torch.Tensor:
    hidden = hidden.contiguous()
    size, dtype = panels.in_features, hidden.dtype
    row_bytes = size * hidden.itemsize
    normalised = torch.empty_like(hidden)
    output = hidden.new_empty(*hidden.shape[:-1], panels.out_features)
    between = normalised.data_ptr()
    steps = [
        norm_step(hidden.data_ptr(), weight.data_ptr(), size, row_bytes, eps, between),
        product_step(Epilogue.PLAIN, between, row_bytes, panels, output.data_ptr()),
    ]
    run_chain(steps, hidden.numel() // size, dtype)
    return output


def output_and_mlp(
    attended: torch.Tensor,
    hidden: torch.Tensor,
    o_proj: Panels,
    weight: torch.Tensor,
    eps: float,
    gate_up: Panels,
    down: Panels,
) -> torch.Tensor:
    attended, hidden = attended.contiguous(), hidden.contiguous()
    size, gated_size, itemsize = o_proj.out_features, gate_up.out_features, hidden.itemsize
    num_rows, row_bytes = hidden.numel() // size, size * itemsize
    output = torch.empty_like(hidden)
    # What lies between the steps: the sum with the residual, the norm of it, and the gated product.
    between = hidden.new_empty(num_rows * (2 * size + gated_size))
    total = between.data_ptr()
    normalised = total + num_rows * row_bytes
    gated = normalised + num_rows * row_bytes
    steps = [
        product_step(
            Epilogue.ADD, attended.data_ptr(), o_proj.in_features * itemsize, o_proj, total, hidden.data_ptr()
        ),
        norm_step(total, weight.data_ptr(), size, row_bytes, eps, normalised),
        product_step(Epilogue.GATE, normalised, row_bytes, gate_up, gated),
        product_step(Epilogue.ADD, gated, gated_size * itemsize, down, output.data_ptr(), total),
    ]
    run_chain(steps, num_rows, hidden.dtype)
    return output
