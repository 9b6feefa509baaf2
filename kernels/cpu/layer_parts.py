"""norm_linear and output_and_mlp on a CPU: what they compute is said in `infer.kernels.linear`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.kernels.cpu.chain import norm_step, product_step, run_chain
from infer.kernels.cpu.linear_block import Epilogue

if TYPE_CHECKING:
    import torch

    from infer.kernels.cpu.panels import Panels


def norm_linear(hidden: torch.Tensor, weight: torch.Tensor, eps: float, panels: Panels) -> torch.Tensor:
    rows = hidden.reshape(-1, hidden.shape[-1])
    normalised = rows.new_empty(rows.shape)
    output = rows.new_empty(*hidden.shape[:-1], panels.out_features)
    steps = [norm_step(rows, weight, eps, normalised), product_step(Epilogue.PLAIN, normalised, panels, output)]
    run_chain(steps, len(rows), hidden.dtype)
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
    rows, residual = attended.reshape(-1, attended.shape[-1]), hidden.contiguous()
    num_rows, size = len(rows), hidden.shape[-1]
    total, normalised, output = (residual.new_empty(residual.shape) for _ in range(3))
    gated = rows.new_empty(num_rows, gate_up.out_features)
    steps = [
        product_step(Epilogue.ADD, rows, o_proj, total, residual),
        norm_step(total, weight, eps, normalised),
        product_step(Epilogue.GATE, normalised.view(num_rows, size), gate_up, gated),
        product_step(Epilogue.ADD, gated, down, output, total),
    ]
    run_chain(steps, num_rows, hidden.dtype)
    return output
